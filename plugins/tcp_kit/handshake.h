// Who is at the other end of a connection.
//
// Each rank has a key: a token of 32 random bytes that it publishes in the store of the run, mixed
// with the content of a key file where the ranks were given one. Who connects to a rank proves that
// it knows that rank's key, and gets the same proof back:
//
//   connection := hello answer transfer*              transfer: each plugin's own
//   hello      := magic rank lane nonce MAC(magic rank lane nonce)
//   answer     := MAC(hello 'y') | MAC(hello 'n')     'n': the answering rank connects itself
//
// MAC is HMAC-SHA512-256 of libsodium under the key of the rank that listens. A token lives as long
// as one communicator, and a rank takes one connection of a peer for each lane, so a hello that was
// overheard is of no use later. What this keeps out is whoever cannot read the store; with a key
// file also who can, but does not have the file. What is sent afterwards is neither encrypted nor
// authenticated: who can change packets on their way can change gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::tcp {

using Mac = std::array<unsigned char, 32>;

// Fields in host order: all ranks run on machines of one byte order.
struct Hello {
  uint64_t magic = 0x33706374'2e676e65;  // of this format
  int32_t rank = 0;                      // of the one that connects
  int32_t lane = 0;
  std::array<unsigned char, 16> nonce{};
  Mac proof{};
};
static_assert(sizeof(Hello) == 64);

class Key {
 public:
  // A new token: hexadecimal digits.
  static Result<std::string> NewToken();
  // `file`: content of the key file, or empty. kRendezvous when `token` is none.
  static Result<Key> Of(const std::string& token, std::string_view file);

  Hello MakeHello(int rank, int lane) const noexcept;
  bool Proves(const Hello& hello) const noexcept;
  Mac Answer(const Hello& hello, bool taken) const noexcept;
  // Hexadecimal digits that two ranks have in common if they have the same key file.
  std::string Fingerprint() const;

 private:
  Mac bytes_{};
};

bool Equal(const Mac& a, const Mac& b) noexcept;  // in constant time

}  // namespace engine::tcp
