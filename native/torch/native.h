// What all native kernels of the shims have in common.
#pragma once

namespace shim {

class Native {
 public:
  Native() = default;
  Native(const Native&) = delete;
  Native& operator=(const Native&) = delete;
  virtual ~Native() = default;
};

}  // namespace shim
