#include "team/team.h"

#ifdef BESTOF_TEAM

#include <linux/futex.h>
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

// GCC turns pragmas into calls of libgomp. The linker gives those of our kernels to the functions
// below that begin with __wrap_; libgomp's own begin with __real_ here.
extern "C" {
void __real_GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
void __real_GOMP_barrier();
bool __real_GOMP_single_start();
bool __real_GOMP_loop_nonmonotonic_dynamic_start(long, long, long, long, long*, long*);
bool __real_GOMP_loop_nonmonotonic_dynamic_next(long*, long*);
void __real_GOMP_loop_end();
void __real_GOMP_loop_end_nowait();
int __real_omp_get_num_threads();
int __real_omp_get_thread_num();
}

namespace bestof {
namespace {

// Pauses until a waiting thread sleeps: 50 to 200 us. Threads of most steps wait for each other for
// less, and to wake one takes 50 us in a virtual machine. If there are more threads than
// processors, one that spins keeps the others from running: 20 convolutions by 5 threads on 2
// processors took 22 ms after 4,000 pauses, and 7 ms in regions of their own.
constexpr int kPauses = 4000, kFewPauses = 50;
// The first regions of a call, in which the calling thread may let others run.
constexpr int kLateRegions = 8;
// Loops with chunks that threads of one region may be apart.
constexpr int kLoops = 4;
constexpr int kMostParts = 0xFFFE, kClosing = 0xFFFF;
constexpr uint64_t kBusy = ~uint64_t{0};

// Nanoseconds. The team rests if the calling thread was left waiting kWaits times within kClose: a
// neighbour has the processor of another thread, and each call would wait for it again. A neighbour
// keeps a processor for 2 ms or more. Single waits are usual on a machine without neighbours. The
// waits of all threads and lists of steps count together: they share the processors.
constexpr int64_t kLong = 1'000'000, kClose = 30'000'000, kRest = 1'000'000'000;
constexpr int kWaits = 3;
std::atomic<int64_t> first_wait_at{0}, rests_until{0};
std::atomic<int> waits{0};

int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Notes for how long the calling thread was left waiting.
void note_wait(int64_t waited) {
  if (waited < kLong) return;
  const int64_t time = now();
  if (time - first_wait_at > kClose) {
    first_wait_at = time;
    waits = 0;
  }
  if (++waits >= kWaits) rests_until = time + kRest;
}

// A number that threads wait for. `sleepers` counts those that sleep.
struct Word {
  std::atomic<uint32_t> value{0};
  std::atomic<int> sleepers{0};
};

// Returns once the word is not `old` any more, or sooner: for how many ns the thread has slept.
int64_t wait_while(Word& word, uint32_t old, int pauses) {
  for (int i = 0; i < pauses; ++i) {
    if (word.value.load(std::memory_order_acquire) != old) return 0;
    __builtin_ia32_pause();
  }
  const int64_t began = now();
  word.sleepers.fetch_add(1);
  if (word.value.load() == old)
    syscall(SYS_futex, &word.value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
  word.sleepers.fetch_sub(1);
  return now() - began;
}

// Wakes those that sleep. The word has changed before, sequentially consistent: else a thread
// that begins to sleep could read the old number after this has read that nobody sleeps.
inline void wake(Word& word) {
  if (word.sleepers.load() != 0)
    syscall(SYS_futex, &word.value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// A loop whose threads take chunks. The name is that of its region, and its place there.
struct alignas(64) Loop {
  std::atomic<uint64_t> name{0};
  std::atomic<long> next{0};
  long end = 0, step = 0;
};

// The ticket holds the number of the region, how many parts it has, and the first part that nobody
// has begun. So a part of a region that has ended can never be taken.
struct Team {
  alignas(64) Word region;
  std::atomic<uint64_t> ticket{0};
  void (*part)(void*) = nullptr;
  void* data = nullptr;
  alignas(64) Word done;  // parts, without those of the calling thread
  alignas(64) Word barriers;
  std::atomic<int> arrived{0};
  std::atomic<uint64_t> single{0};
  Loop loops[kLoops];
  std::atomic<int> processor{-1};  // of the calling thread
  std::atomic<int> serving{0};     // threads that have begun to serve
  int size = 1, pauses = kPauses, regions = 0;
};

inline uint32_t region_of(uint64_t ticket) {
  return static_cast<uint32_t>(ticket >> 32);
}
inline int parts_of(uint64_t ticket) {
  return (ticket >> 16) & 0xFFFF;
}
inline int next_of(uint64_t ticket) {
  return ticket & 0xFFFF;
}

// What the calling thread does: `parts` is 0 outside of a region that the team runs. loop: the one
// that it takes chunks of, null if it has them all. begun: loops and singles of the part so far.
struct Place {
  Team* team;
  int part, parts;
  uint32_t region, begun;
  Loop* loop;
};
thread_local Place place = {};

inline uint64_t next_name() {
  return uint64_t{place.region} << 32 | ++place.begun;
}

void run_part(Team& team, uint64_t ticket, int part) {
  place = {&team, part, parts_of(ticket), region_of(ticket), 0, nullptr};
  team.part(team.data);
  place.parts = 0;
}

// Runs the parts that nobody has begun. `finished` is called after each of them.
template <class Finished>
void take_parts(Team& team, Finished finished) {
  uint64_t ticket = team.ticket.load(std::memory_order_acquire);
  while (parts_of(ticket) != kClosing && next_of(ticket) < parts_of(ticket)) {
    if (!team.ticket.compare_exchange_weak(ticket, ticket + 1)) continue;
    run_part(team, ticket, next_of(ticket));
    finished();
    ticket = team.ticket.load(std::memory_order_acquire);
  }
}

// Virtual machines often wake a thread where the calling one runs, and move it some milliseconds
// later. Until then each waits for the other one's time slice: MobileNetV3, called every 50 ms,
// took 4.2 to 5.2 ms, and 14 to 17 in one call of ten. With the two functions below it takes 3.0 to
// 3.9, and 3.4 to 11.

// Lets threads run that have not begun to serve, if they wait for the calling thread's processor.
void call_others(Team& team) {
  if (team.serving.load(std::memory_order_relaxed) >= team.size - 1) return;
  // Most threads begin during the first region, and some cannot begin.
  if (team.regions > kLateRegions || ++team.regions == 1) return;
  sched_yield();
  team.processor.store(sched_getcpu(), std::memory_order_relaxed);
}

// Moves the thread to another processor if it is on that of the calling one.
void leave_processor(const Team& team) {
  const int taken = team.processor.load(std::memory_order_relaxed);
  if (taken < 0 || sched_getcpu() != taken) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(taken, &others);
  if (sched_setaffinity(0, sizeof others, &others) != 0) return;
  // Not if somebody else has set it meanwhile.
  cpu_set_t current;
  if (sched_getaffinity(0, sizeof current, &current) == 0 && CPU_EQUAL(&current, &others))
    sched_setaffinity(0, sizeof allowed, &allowed);
}

// What the other threads do.
void serve(Team& team) {
  leave_processor(team);
  team.serving.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const uint32_t region = team.region.value.load(std::memory_order_acquire);
    if (parts_of(team.ticket.load(std::memory_order_acquire)) == kClosing) break;
    take_parts(team, [&] {
      team.done.value.fetch_add(1);
      wake(team.done);
    });
    if (wait_while(team.region, region, team.pauses) > 0) leave_processor(team);
  }
  place = {};
}

// Offers all parts but the first, which is the calling thread's.
uint64_t begin_region(Team& team, int parts) {
  const uint32_t region = team.region.value.load(std::memory_order_relaxed) + 1;
  const uint64_t ticket = uint64_t{region} << 32 | static_cast<uint64_t>(parts) << 16 | 1;
  team.done.value.store(0, std::memory_order_relaxed);
  team.ticket.store(ticket, std::memory_order_release);
  team.region.value.store(region);
  wake(team.region);
  return ticket;
}

void run_region(Team& team, void (*part)(void*), void* data, int parts) {
  call_others(team);
  team.part = part;
  team.data = data;
  run_part(team, begin_region(team, parts), 0);
  uint32_t others = parts - 1;
  take_parts(team, [&] { --others; });
  for (uint32_t done; (done = team.done.value.load(std::memory_order_acquire)) != others;)
    note_wait(wait_while(team.done, done, team.pauses));
}

void wait_for_all(Team& team) {
  const uint32_t before = team.barriers.value.load(std::memory_order_acquire);
  if (team.arrived.fetch_add(1) + 1 == place.parts) {
    team.arrived.store(0, std::memory_order_relaxed);
    team.barriers.value.store(before + 1);
    wake(team.barriers);
    return;
  }
  while (team.barriers.value.load(std::memory_order_acquire) == before)
    wait_while(team.barriers, before, team.pauses);
}

bool take_chunk(Loop& loop, long* first, long* last) {
  const long at = loop.next.fetch_add(loop.step, std::memory_order_relaxed);
  if (at >= loop.end) return false;
  *first = at;
  *last = at + loop.step < loop.end ? at + loop.step : loop.end;
  return true;
}

// Returns the next loop of the part. The first thread that meets it sets it up.
Loop& begin_loop(long begin, long end, long step) {
  const uint64_t name = next_name();
  Loop& loop = place.team->loops[place.begun % kLoops];
  uint64_t found = loop.name.load(std::memory_order_acquire);
  while (found != name) {
    if (found != kBusy && loop.name.compare_exchange_weak(found, kBusy)) {
      loop.next.store(begin, std::memory_order_relaxed);
      loop.end = end;
      loop.step = step;
      loop.name.store(name, std::memory_order_release);
      return loop;
    }
    found = loop.name.load(std::memory_order_acquire);
  }
  return loop;
}

// threads: OpenMP's number for regions of the calling thread, before the steps and after them.
struct Call {
  Team team;
  void (*steps)(void*);
  void* data;
  int threads;
  int64_t ended = 0;
};

void in_region(void* given) {
  auto& call = *static_cast<Call*>(given);
  if (__real_omp_get_thread_num() != 0) return serve(call.team);
  call.team.size = __real_omp_get_num_threads();
  place = {&call.team, 0, 0, 0, 0, nullptr};
  call.team.processor.store(sched_getcpu(), std::memory_order_relaxed);
  // OMP_NUM_THREADS=2,1 would give a region within a region one thread.
  omp_set_num_threads(call.threads);
  call.steps(call.data);
  call.threads = omp_get_max_threads();
  place = {};
  call.ended = now();
  begin_region(call.team, kClosing);
}

}  // namespace

void with_team(int threads, void (*steps)(void*), void* data) {
  if (place.team || threads < 2 || threads > kMostParts || now() < rests_until) return steps(data);
  Call call;
  call.steps = steps;
  call.data = data;
  call.threads = threads;
  if (threads > omp_get_num_procs()) call.team.pauses = kFewPauses;
  __real_GOMP_parallel(in_region, &call, threads, 0);
  note_wait(now() - call.ended);
  // A step may have set another number, which has ended with the region.
  if (call.threads != threads) omp_set_num_threads(call.threads);
}

}  // namespace bestof

using bestof::place;

extern "C" {

void __wrap_GOMP_parallel(void (*part)(void*), void* data, unsigned threads, unsigned flags) {
  bestof::Team* team = place.team;
  if (!team) return __real_GOMP_parallel(part, data, threads, flags);
  const auto size = static_cast<unsigned>(team->size);
  const unsigned parts = threads == 0 || threads > size ? size : threads;
  if (place.parts == 0 && parts > 1)
    return bestof::run_region(*team, part, data, static_cast<int>(parts));
  const bestof::Place before = place;
  place = {team, 0, 1, 0, 0, nullptr};
  part(data);
  place = before;
}

void __wrap_GOMP_barrier() {
  if (place.parts == 0) return __real_GOMP_barrier();
  if (place.parts > 1) bestof::wait_for_all(*place.team);
}

bool __wrap_GOMP_single_start() {
  if (place.parts == 0) return __real_GOMP_single_start();
  if (place.parts == 1) return true;
  const uint64_t name = bestof::next_name();
  uint64_t taken = place.team->single.load(std::memory_order_acquire);
  while (taken < name)
    if (place.team->single.compare_exchange_weak(taken, name)) return true;
  return false;
}

bool __wrap_GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long step, long chunk,
                                                 long* first, long* last) {
  if (place.parts == 0)
    return __real_GOMP_loop_nonmonotonic_dynamic_start(begin, end, step, chunk, first, last);
  if (place.parts > 1) {
    place.loop = &bestof::begin_loop(begin, end, step * chunk);
    return bestof::take_chunk(*place.loop, first, last);
  }
  *first = begin;
  *last = end;
  return begin < end;
}

bool __wrap_GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) {
  if (place.parts == 0) return __real_GOMP_loop_nonmonotonic_dynamic_next(first, last);
  return place.parts > 1 && bestof::take_chunk(*place.loop, first, last);
}

void __wrap_GOMP_loop_end() {
  if (place.parts == 0) return __real_GOMP_loop_end();
  __wrap_GOMP_barrier();
}

void __wrap_GOMP_loop_end_nowait() {
  if (place.parts == 0) __real_GOMP_loop_end_nowait();
}

int __wrap_omp_get_num_threads() {
  return place.parts != 0 ? place.parts : __real_omp_get_num_threads();
}

int __wrap_omp_get_thread_num() {
  return place.parts != 0 ? place.part : __real_omp_get_thread_num();
}

}  // extern "C"

#else

namespace bestof {

void with_team(int, void (*steps)(void*), void* data) {
  steps(data);
}

}  // namespace bestof

#endif
