// Any text in place of HOST:PORT: refused, or a host and a port that getaddrinfo may be asked for.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "app/launch/endpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto endpoint = engine::launch::ParseEndpoint(text);
  if (!endpoint.ok()) return 0;
  ENGINE_CHECK(endpoint->text == text);
  if (!endpoint->unix_name.empty()) {
    ENGINE_CHECK(endpoint->unix_name.size() <= 100 && endpoint->host.empty());
    return 0;
  }
  const int port = std::atoi(endpoint->port.c_str());
  ENGINE_CHECK(!endpoint->host.empty() && port >= 1 && port <= 65535);
  ENGINE_CHECK(endpoint->port.find_first_not_of("0123456789") == std::string::npos);
  return 0;
}
