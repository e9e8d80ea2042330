#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "rendezvous.h"

namespace engine::zmq_ps {
namespace {

// "10.0.0.1", "[fe80::1]"; empty for other families.
std::string Numeric(const sockaddr* address) {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return {};
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return address->sa_family == AF_INET ? std::string(text) : '[' + std::string(text) + ']';
}

// IPv4 before IPv6.
std::string OfInterface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::string found;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (name != entry->ifa_name || !(entry->ifa_flags & IFF_UP)) continue;
    const std::string address = Numeric(entry->ifa_addr);
    if (!address.empty() && (found.empty() || found.front() == '[')) found = address;
  }
  return found;
}

std::string OfName(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::string found;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    const std::string address = Numeric(entry->ai_addr);
    if (!address.empty() && (found.empty() || found.front() == '[')) found = address;
  }
  return found;
}

}  // namespace

Result<std::string> FindAddress(const std::string& interface, const std::string& hostname) {
  std::string name = hostname;
  if (name.empty()) {
    char own[256] = {};
    gethostname(own, sizeof(own) - 1);
    name = own;
  }
  const std::string address = interface.empty() ? OfName(name) : OfInterface(interface);
  if (!address.empty()) return address;
  return Status::Error(StatusCode::kConfig,
                       "no network address for %s '%s': set the option interface or hostname of "
                       "zmq_ps",
                       interface.empty() ? "host" : "interface",
                       interface.empty() ? name.c_str() : interface.c_str());
}

}  // namespace engine::zmq_ps
