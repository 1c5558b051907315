#include "entries.h"

#include <atomic>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "operator_shim.h"

namespace shim {

namespace {

using Tensor = stable::Tensor;
using Boxed = void (*)(void* functor, const void* operation, uint64_t keys, void* stack);

// The operators of products, in the order of the shim that answers them.
enum Typed { MM, ADDMM, BMM, BADDBMM, ATTENTION, TYPED };
constexpr const char* TYPED_NAMES[TYPED] = {"mm", "addmm", "bmm", "baddbmm",
                                            "_scaled_dot_product_flash_attention_for_cpu"};
constexpr int MOST = 64;

// An operator keeps its entry for ever: a thread may be inside.
struct Entry {
  std::string name, key;  // under Python's lock
  std::atomic<OperatorShim*> shim{nullptr};
  std::atomic<int> place{0};
  bool is_open = false;  // under Python's lock
};
Entry entries[MOST];

OperatorShim& shim_of(int entry) {
  return *entries[entry].shim.load(std::memory_order_acquire);
}

// Boxed calls of operators with typed kernels come from torch.ops and from modes that intercept
// operators: PyTorch answers them.
void by_pytorch(int entry, const void* operation, uint64_t keys, void* stack) {
  const KernelFunction& original =
      shim_of(entry).original(entries[entry].place.load(std::memory_order_relaxed));
  reinterpret_cast<Boxed>(original.boxed)(original.functor, operation, keys, stack);
}

template <int kEntry>
void original_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  by_pytorch(kEntry, operation, keys, stack);
}

// ---- products ----

using Product = Result (*)(void* functor, uint64_t keys, Tensor a, Tensor b);
using BiasedProduct = Result (*)(void* functor, uint64_t keys, Tensor bias, Tensor a, Tensor b,
                                 const Scalar* beta, const Scalar* alpha);

bool answer_product(OperatorShim& shim, int operation, Tensor bias, Tensor a, Tensor b,
                    OperatorCall& call) {
  call.add(Argument::of(static_cast<int64_t>(operation)));
  call.add(Argument::of(bias));
  call.add(Argument::of(a));
  call.add(Argument::of(b));
  return shim.answer(call);
}

template <int kEntry>
Result product_kernel(void*, uint64_t keys, Tensor a, Tensor b) {
  OperatorShim& shim = shim_of(kEntry);
  OperatorCall call(1);
  if (answer_product(shim, kEntry, nullptr, a, b, call)) return Result(call.results[0]);
  const KernelFunction& own = shim.original(kEntry);
  return reinterpret_cast<Product>(own.unboxed)(own.functor, keys, a, b);
}

template <int kEntry>
Result biased_kernel(void*, uint64_t keys, Tensor bias, Tensor a, Tensor b, const Scalar* beta,
                     const Scalar* alpha) {
  OperatorShim& shim = shim_of(kEntry);
  OperatorCall call(1);
  if (beta->is_one() && alpha->is_one() && answer_product(shim, kEntry, bias, a, b, call))
    return Result(call.results[0]);
  const KernelFunction& own = shim.original(kEntry);
  return reinterpret_cast<BiasedProduct>(own.unboxed)(own.functor, keys, bias, a, b, beta, alpha);
}

// ---- attention ----

// The results, and the logsumexp of each query.
using Attended = std::tuple<Result, Result>;
// An optional tensor of PyTorch: the tensor, and whether it is there.
struct OptionalTensor {
  void* tensor;
  bool is_there;
};
using Attention = Attended (*)(void* functor, uint64_t keys, Tensor q, Tensor k, Tensor v,
                               double dropout, bool causal, const OptionalTensor* mask,
                               std::optional<double> scale);

Attended attention_kernel(void*, uint64_t keys, Tensor q, Tensor k, Tensor v, double dropout,
                          bool causal, const OptionalTensor* mask, std::optional<double> scale) {
  OperatorShim& shim = shim_of(ATTENTION);
  auto* masking = const_cast<void**>(&mask->tensor);
  OperatorCall call(2);
  for (const Tensor one : {q, k, v}) call.add(Argument::of(one));
  call.add(Argument::of(dropout));
  call.add(Argument::of(causal));
  call.add(Argument::of(mask->is_there ? reinterpret_cast<Tensor>(masking) : nullptr));
  call.add(scale.has_value() ? Argument::of(*scale) : Argument::absent());
  if (shim.answer(call)) return Attended(call.results[0], call.results[1]);
  const KernelFunction& own = shim.original(0);
  return reinterpret_cast<Attention>(own.unboxed)(own.functor, keys, q, k, v, dropout, causal, mask,
                                                  scale);
}

// ---- every other operator ----

// Reads an argument of a boxed call; false for one of a type that is not known here.
bool read(StackValue& value, bool is_tensor, Argument* argument) {
  switch (value.tag) {
    case StackValue::NONE:
      *argument = is_tensor ? Argument::of(Tensor(nullptr)) : Argument::absent();
      return true;
    case StackValue::TENSOR: {
      bool is_defined = false;  // autograd passes an undefined tensor in place of none
      if (stable::aoti_torch_is_defined(value.handle(), &is_defined) != 0) return false;
      *argument = Argument::of(is_defined ? value.handle() : nullptr);
      return is_tensor;
    }
    case StackValue::WHOLE:
      *argument = Argument::of(value.payload.whole);
      return true;
    case StackValue::REAL:
      *argument = Argument::of(value.payload.real);
      return true;
    case StackValue::TRUTH:
      *argument = Argument::of(value.payload.truth);
      return true;
    case StackValue::TEXT:
      argument->kind = Argument::TEXT;
      argument->text = &value.text();
      return true;
    case StackValue::LIST:
      argument->kind = Argument::LIST;
      argument->list = &value.list();
      return true;
    default:
      return false;
  }
}

void enter(int entry, const void* operation, uint64_t keys, void* stack) {
  OperatorShim& shim = shim_of(entry);
  const int place = entries[entry].place.load(std::memory_order_relaxed);
  const Operator& own = shim.entry(place);
  auto& values = *static_cast<std::vector<StackValue>*>(stack);
  const std::size_t kept = values.size() - own.kinds.size();
  OperatorCall call(own.results);
  bool is_read = shim.operators() == 1 || call.add(Argument::of(static_cast<int64_t>(place)));
  for (std::size_t i = 0; is_read && i < own.kinds.size(); ++i) {
    Argument argument;
    is_read = read(values[kept + i], own.kinds[i] == 't', &argument) && call.add(argument);
  }
  if (!is_read || !shim.answer(call)) return by_pytorch(entry, operation, keys, stack);
  for (std::size_t i = kept; i < values.size(); ++i) values[i].drop();
  values.resize(kept);
  for (int i = 0; i < own.results; ++i) values.push_back(StackValue::of(call.results[i]));
}

template <int kEntry>
void boxed_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  enter(kEntry, operation, keys, stack);
}

template <std::size_t... kEntries>
void* boxed_of(int entry, std::index_sequence<kEntries...>) {
  static constexpr Boxed KERNELS[] = {boxed_kernel<static_cast<int>(kEntries)>...};
  return reinterpret_cast<void*>(KERNELS[entry]);
}

// ---- all of them ----

template <int kEntry, typename Kernel>
KernelFunction typed_kernel(Kernel kernel) {
  KernelFunction made;
  made.boxed = reinterpret_cast<void*>(&original_kernel<kEntry>);
  made.unboxed = reinterpret_cast<void*>(kernel);
  return made;
}

KernelFunction kernel_of(int entry) {
  switch (entry) {
    case MM:
      return typed_kernel<MM>(&product_kernel<MM>);
    case ADDMM:
      return typed_kernel<ADDMM>(&biased_kernel<ADDMM>);
    case BMM:
      return typed_kernel<BMM>(&product_kernel<BMM>);
    case BADDBMM:
      return typed_kernel<BADDBMM>(&biased_kernel<BADDBMM>);
    case ATTENTION:
      return typed_kernel<ATTENTION>(&attention_kernel);
    default: {
      KernelFunction made;
      made.boxed = boxed_of(entry, std::make_index_sequence<MOST>());
      return made;
    }
  }
}

// Returns the entry of an operator on the devices of a dispatch key, -1 if there is no place left.
int entry_of(const std::string& name, const std::string& key) {
  for (int entry = 0; entry < TYPED; ++entry) {
    if (name == TYPED_NAMES[entry]) return entry;
  }
  for (int entry = TYPED; entry < MOST; ++entry) {
    Entry& one = entries[entry];
    if (one.name.empty()) {
      one.name = name;
      one.key = key;
    }
    if (one.name == name && one.key == key) return entry;
  }
  return -1;
}

}  // namespace

bool open_entry(OperatorShim& shim, int place, const char* key, KernelFunction* kernel) {
  const int entry = entry_of(shim.entry(place).name, key);
  if (entry < 0 || entries[entry].is_open) return false;
  entries[entry].place.store(place, std::memory_order_relaxed);
  entries[entry].shim.store(&shim, std::memory_order_release);
  entries[entry].is_open = true;
  *kernel = kernel_of(entry);
  return true;
}

void close_entry(const OperatorShim& shim, int place) {
  for (Entry& one : entries) {
    if (one.shim.load() == &shim && one.place.load() == place) one.is_open = false;
  }
}

bool is_typed(const std::string& name) {
  for (const char* one : TYPED_NAMES) {
    if (name == one) return true;
  }
  return false;
}

}  // namespace shim
