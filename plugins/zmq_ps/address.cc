// getnameinfo makes addresses numeric, so what is published means the same on every host. IPv4 is
// preferred: a name often has an IPv6 address that no route leads to.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "rendezvous.h"

namespace engine::zmq_ps {
namespace {

// Makes `address` *found, "10.0.0.1" or "[fe80::1]", unless that is an IPv4 address already.
void Offer(const sockaddr* address, std::string* found) {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return;
  if (!found->empty() && found->front() != '[') return;
  const bool is_ipv4 = address->sa_family == AF_INET;
  const socklen_t size = is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return;
  if (is_ipv4 || found->empty())
    *found = is_ipv4 ? std::string(text) : '[' + std::string(text) + ']';
}

std::string OfInterface(const std::string& name) {
  std::string found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (name == entry->ifa_name && (entry->ifa_flags & IFF_UP)) Offer(entry->ifa_addr, &found);
  }
  return found;
}

std::string OfName(const std::string& name) {
  std::string found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return found;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) Offer(entry->ai_addr, &found);
  return found;
}

}  // namespace

Result<std::string> FindAddress(const std::string& interface, const std::string& hostname) {
  std::string name = interface.empty() ? hostname : interface;
  if (name.empty()) {
    char own[256] = {};
    gethostname(own, sizeof(own) - 1);
    name = own;
  }
  const std::string address = interface.empty() ? OfName(name) : OfInterface(name);
  if (!address.empty()) return address;
  return Status::Error(StatusCode::kConfig,
                       "no network address for %s '%s': set the option interface or hostname of "
                       "zmq_ps",
                       interface.empty() ? "host" : "interface", name.c_str());
}

}  // namespace engine::zmq_ps
