// Errors that tests ask for.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace emulated_cuda {

// EMULATED_CUDA_FAULT: `<function>:<call>=<code>` with commas between several, where <call> is the
// number of the call, from 1, or `<number>+` for that and all later ones. The call has no effect
// but its code. Anything else ends the process with a sentence.
class Faults {
 public:
  explicit Faults(const char* text);

  // The code of this call of `function`; 0: it is to work. [any-thread]
  int Next(const char* function);

 private:
  struct Fault {
    std::string function;
    unsigned long call = 1;
    bool later = false;
    int code = 0;
  };
  static Fault Parse(const std::string& text);

  std::vector<Fault> faults_;  // constant after construction
  std::mutex mutex_;
  std::map<std::string, unsigned long> calls_;  // guarded by mutex_
};

}  // namespace emulated_cuda
