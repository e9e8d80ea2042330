// The secret that a member which joins over the network shares with its run, and how both prove
// that they know it without sending it.
//
//   challenge    = store_nonce                                  32 random bytes
//   proof        = member_nonce MAC("M", ...)                   of the member
//   store proof  = MAC("S", ...)                                of the store
//   MAC(who,...) = BLAKE2b-256, keyed, of "engine store handshake 1" who store_nonce member_nonce
//                  member                                       i32, little-endian
//
// It proves who is there when a connection begins; the channel itself is neither encrypted nor
// protected against one who can change packets on their way.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::launch {

class ServerKey {
 public:
  static constexpr size_t kBytes = 32;
  static constexpr size_t kNonceBytes = 32;
  static constexpr size_t kProofBytes = 32;

  // Reads a file of 64 hexadecimal digits. kMissingInput if there is none, kConfig if others than
  // its owner may read it, kBadData if it holds something else.
  static Result<ServerKey> Load(const std::string& path);
  // The same; a file that does not exist is made, with a new key and mode 0600. kStorage.
  static Result<ServerKey> LoadOrCreate(const std::string& path);
  ~ServerKey();
  ServerKey(const ServerKey&) = default;
  ServerKey& operator=(const ServerKey&) = default;

  enum class Side : char { kMember = 'M', kStore = 'S' };
  std::string Prove(Side side, std::string_view store_nonce, std::string_view member_nonce,
                    int32_t member) const;
  // In a time that does not depend on where they differ.
  bool Check(std::string_view proof, Side side, std::string_view store_nonce,
             std::string_view member_nonce, int32_t member) const;

  static std::string MakeNonce();

 private:
  ServerKey() = default;

  std::array<unsigned char, kBytes> bytes_{};
};

}  // namespace engine::launch
