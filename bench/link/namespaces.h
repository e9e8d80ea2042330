// Network namespaces with names of our own, and that none of them outlives its owner.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::bench {

// Removes namespaces that processes of this machine left behind which are no more. Not an error
// when there are none.
Status RemoveStaleNamespaces(const std::string& ip);

// Namespaces "engine-<pid>-<serial>-<suffix>". They and all processes in them end with this object,
// or with this process, however it ends.
class Namespaces {
 public:
  // `ip` is the path of that program. kUnsupported when the kernel or a container refuses.
  static Result<std::unique_ptr<Namespaces>> Create(const std::string& ip,
                                                    const std::vector<std::string>& suffixes);
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // In the order of the suffixes.
  const std::vector<std::string>& names() const { return names_; }

  // What the processes of namespace `index` find in /etc/hosts, in that file's format. Those that
  // run already keep theirs.
  Status SetHostNames(size_t index, const std::string& lines);

 private:
  Namespaces(std::string ip, std::vector<std::string> names)
      : ip_(std::move(ip)), names_(std::move(names)) {}
  Status StartGuard();
  void WaitForGuard();

  const std::string ip_;
  const std::vector<std::string> names_;
  // The guard removes everything when the other end of its standard input is closed: by us, or by
  // the kernel when we end.
  kit::UniqueFd guard_input_;
  pid_t guard_ = -1;
};

}  // namespace engine::bench
