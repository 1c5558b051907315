// The first and the last bytes of a tensor's memory, to notice writes that raise no version.
//
// Nearly all such writes change a whole tensor: `.data.mul_`, NumPy, DLPack, an average of weights,
// PyTorch's fused optimizers. Comparing two cache lines finds them. A write to other elements alone
// is not found; that takes a hash of all memory.
#pragma once
#include <cstddef>
#include <cstring>

namespace shim {

class MemorySample {
 public:
  static constexpr std::size_t LINE = 64;

  // Copies the lines of `bytes` bytes at `address`; nothing if either is 0.
  MemorySample(const void* address, std::size_t bytes)
      : line_(address == nullptr ? 0 : (bytes < LINE ? bytes : LINE)),
        last_(bytes < LINE ? 0 : bytes - LINE) {
    if (line_ == 0) return;
    std::memcpy(lines_, address, line_);
    std::memcpy(lines_ + LINE, at(address), line_);
  }

  const void* lines() const { return lines_; }
  void prefetch(const void* address) const {
    __builtin_prefetch(address);
    __builtin_prefetch(at(address));
  }
  // Returns whether the memory at this address, which has as many bytes, has the same lines.
  bool matches(const void* address) const {
    return std::memcmp(lines_, address, line_) == 0 &&
           std::memcmp(lines_ + LINE, at(address), line_) == 0;
  }

 private:
  const void* at(const void* address) const { return static_cast<const char*>(address) + last_; }

  std::size_t line_, last_;
  unsigned char lines_[2 * LINE] = {};
};

}  // namespace shim
