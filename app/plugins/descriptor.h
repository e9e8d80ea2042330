// The content of a plugin's descriptor symbol, decoded from untrusted bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "app/plugins/catalog.h"
#include "engine/status.h"

namespace engine::plugins {

// "x" of ".../libengine_x.so"; empty when the file is called otherwise.
std::string PluginNameOfFile(std::string_view path);

// Checks the handshake (magic, ABI major, minor), then everything else that the bytes
// state, and fills the fields of `entry` that come from the descriptor. `entry->name` must be the
// name in the file's name and is compared. kPlugin with a clause without the file's name; `entry`
// may be half filled then.
Status DecodeDescriptor(std::span<const std::byte> bytes, PluginFile* entry);

}  // namespace engine::plugins
