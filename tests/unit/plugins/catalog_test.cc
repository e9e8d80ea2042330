#include "app/plugins/catalog.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/expect_status.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::plugins {
namespace {

using plugin::PluginFolder;

class ReadPluginFileTest : public ::testing::Test {
 protected:
  // The sentence of a file that must be refused, without the file's name in front.
  std::string Refusal(const std::string& file) {
    const PluginFile entry = ReadPluginFile(file);
    EXPECT_EQ(entry.problem.code(), StatusCode::kPlugin) << file;
    const std::string message = entry.problem.message();
    EXPECT_THAT(message, StartsWith(file + ": "));
    EXPECT_FALSE(std::filesystem::exists(file + ".initialised")) << "code of a refused file ran";
    return message.size() > file.size() + 2 ? message.substr(file.size() + 2) : message;
  }

  // The sentence on a good fixture whose descriptor was changed.
  template <typename Change>
  std::string RefusalOfPatched(const std::string& fixture, Change change) {
    const std::string file = folder_.Add(fixture);
    PluginFolder::Patch(file, change);
    const std::string sentence = Refusal(file);
    std::filesystem::remove(file);
    return sentence;
  }

  PluginFolder folder_;
};

TEST_F(ReadPluginFileTest, TellsEverythingWithoutRunningCode) {
  const PluginFile entry = ReadPluginFile(folder_.Add("test_sched"));
  ASSERT_TRUE(entry.problem.ok()) << entry.problem.message();
  EXPECT_EQ(entry.path, folder_.File("test_sched"));
  EXPECT_EQ(entry.name, "test_sched");
  EXPECT_EQ(entry.version, "1.2.3");
  EXPECT_EQ(entry.kind, PluginKind::kScheduler);
  EXPECT_EQ(entry.doc, "a scheduler of the tests");
  EXPECT_EQ(entry.device, "any");
  EXPECT_EQ(entry.compiler, "GCC " __VERSION__);
  EXPECT_EQ(entry.abi_major, ENGINE_ABI_MAJOR);
  ASSERT_EQ(entry.options.size(), 5u);
  EXPECT_EQ(entry.options[0].name.view(), "credit");
  EXPECT_EQ(entry.options[0].max, 64);
  EXPECT_EQ(entry.options[3].choices.view(), "ready|priority");
  EXPECT_FALSE(folder_.Initialised("test_sched"));
}

TEST_F(ReadPluginFileTest, ReadsStrippedFiles) {
  const std::string file = folder_.Add("test_sched");
  ASSERT_EQ(std::system(("strip --strip-all " + file).c_str()), 0);
  const PluginFile entry = ReadPluginFile(file);
  EXPECT_TRUE(entry.problem.ok()) << entry.problem.message();
  EXPECT_EQ(entry.version, "1.2.3");
}

TEST_F(ReadPluginFileTest, RefusesWhatIsNoLibrary) {
  const std::string file = folder_.File("text");
  PluginFolder::WriteFile(file, "just some text that is longer than the header of an ELF file ...");
  EXPECT_EQ(Refusal(file), "this is not a shared library (no ELF file)");
  PluginFolder::WriteFile(file, "");
  EXPECT_EQ(Refusal(file), "this is not a shared library (no ELF file)");
  PluginFolder::WriteFile(file, "\177ELF");
  EXPECT_EQ(Refusal(file), "the file is truncated or damaged");
  std::filesystem::remove(file);
  EXPECT_EQ(Refusal(file), "the file cannot be read: No such file or directory");
  std::filesystem::create_directory(file);
  EXPECT_EQ(Refusal(file), "this is not a regular file");
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(Refusal(file), "this is not a regular file") << "and must not block";
  const std::string executable = folder_.File("program");
  PluginFolder::WriteFile(executable, test::ReadWhole("/bin/sh"));
  // A position-independent executable is a shared library to ELF, one without a descriptor.
  EXPECT_THAT(Refusal(executable), HasSubstr("is it an engine plugin?"));
}

TEST_F(ReadPluginFileTest, RefusesWhatEverybodyMayReplace) {
  const std::string file = folder_.Add("test_sched");
  for (const std::string& shared : {file, folder_.path()}) {
    std::filesystem::permissions(shared, std::filesystem::perms::others_write,
                                 std::filesystem::perm_options::add);
    EXPECT_THAT(Refusal(file), HasSubstr("everybody may replace it"));
    std::filesystem::permissions(shared, std::filesystem::perms::others_write,
                                 std::filesystem::perm_options::remove);
  }
  EXPECT_TRUE(ReadPluginFile(file).problem.ok());
}

TEST_F(ReadPluginFileTest, RefusesAnotherProcessor) {
  const std::string file = folder_.Add("test_hook");
  const std::string good = test::ReadWhole(file);
  std::string bytes = good;
  bytes[18] = 8;  // e_machine: MIPS
  bytes[19] = 0;
  PluginFolder::WriteFile(file, bytes);
  EXPECT_EQ(Refusal(file), "the library was built for another processor (ELF machine 8, 64-bit)");
  bytes = good;
  bytes[4] = 1;  // EI_CLASS
  PluginFolder::WriteFile(file, bytes);
  EXPECT_THAT(Refusal(file), HasSubstr("32-bit"));
  bytes = good;
  bytes[16] = 1;  // e_type: relocatable
  PluginFolder::WriteFile(file, bytes);
  EXPECT_EQ(Refusal(file), "this is an ELF file, but not a shared library");
}

TEST_F(ReadPluginFileTest, RefusesEveryTruncation) {
  const std::string file = folder_.Add("test_sched");
  const size_t whole = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, whole - 1);
  EXPECT_EQ(Refusal(file), "the file is truncated or damaged");
  for (size_t length = whole; length > 0;) {
    length -= std::min(length, 1 + length / 50);
    std::filesystem::resize_file(file, length);
    EXPECT_NE(Refusal(file), "") << length << " of " << whole << " bytes";
  }
}

// Any single damaged byte is refused or harmless: the reader stays within its buffers (which the
// sanitizer build proves) and ends.
TEST_F(ReadPluginFileTest, SurvivesDamagedBytes) {
  const std::string file = folder_.Add("test_ops");
  const std::string bytes = test::ReadWhole(file);
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto write_at = [&out](size_t position, char byte) {
    out.seekp(static_cast<std::streamoff>(position)).put(byte).flush();
  };
  const size_t stride = std::max<size_t>(41, bytes.size() / 500);  // beyond the headers
  int refused = 0, tried = 0;
  for (size_t i = 0; i < bytes.size(); i += i < 1024 ? 1 : stride) {
    write_at(i, static_cast<char>(~bytes[i]));
    refused += !ReadPluginFile(file).problem.ok();
    ++tried;
    write_at(i, bytes[i]);
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, tried);
}

TEST_F(ReadPluginFileTest, RefusesLibrariesWithoutOurDescriptor) {
  EXPECT_EQ(Refusal(folder_.Add("no_symbol")),
            "exports no engine_plugin_v0; is it an engine plugin?");
  const std::string file = folder_.Add("test_hook");
  std::string bytes = test::ReadWhole(file);
  for (size_t at = 0; (at = bytes.find("engine_plugin_v0", at)) != std::string::npos; ++at) {
    bytes[at + 15] = '2';
  }
  PluginFolder::WriteFile(file, bytes);
  EXPECT_EQ(Refusal(file),
            "exports engine_plugin_v2, this engine loads v0; rebuild it against the headers of "
            "this engine");
}

TEST_F(ReadPluginFileTest, RefusesAFailedHandshake) {
  EXPECT_THAT(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.magic ^= 1; }),
              HasSubstr("does not begin with the magic number"));
  EXPECT_EQ(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.abi_major = 7; }),
            "built for plugin ABI 7, this engine has ABI 0; rebuild it");
  EXPECT_EQ(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.min_host_minor = 9; }),
            "needs plugin ABI 0.9, this engine has 0.2; use a newer engine");
}

TEST_F(ReadPluginFileTest, RefusesAnotherLayoutUnlessOneSideKnowsTheOthers) {
  const auto sentence = [this](auto change) {
    return RefusalOfPatched("test_hook", [&](PluginHeader& h, char*) { change(h); });
  };
  constexpr uint64_t kDrifted = 0x0123456789abcdef, kOurs = kLayoutOf<GradientHook>;
  char ours[32];
  std::snprintf(ours, sizeof ours, "%016llx", static_cast<unsigned long long>(kOurs));
  EXPECT_EQ(sentence([](PluginHeader& h) { h.role = {{kDrifted}}; }),
            std::string("built with another layout of hook (0123456789abcdef, this engine has ") +
                ours + "); rebuild it against the headers of this engine");
  EXPECT_THAT(sentence([](PluginHeader& h) { h.host = {{kDrifted}}; }),
              HasSubstr("another layout of the host ("));
  EXPECT_THAT(sentence([](PluginHeader& h) { h.options = {{kDrifted}}; }),
              HasSubstr("another layout of options ("));
  EXPECT_THAT(sentence([](PluginHeader& h) { h.role = {}; }), HasSubstr("another layout of hook"));
  // A newer one, whose headers say that it grew out of ours.
  const std::string newer = folder_.Add("test_hook");
  PluginFolder::Patch(newer, [](PluginHeader& h, char*) { h.role = {{kDrifted, 7, kOurs}}; });
  EXPECT_TRUE(ReadPluginFile(newer).problem.ok());
}

TEST_F(ReadPluginFileTest, RefusesWrongSizesAndLists) {
  const auto sentence = [this](auto change) { return RefusalOfPatched("test_ops", change); };
  EXPECT_THAT(sentence([](PluginHeader& h, char*) { h.size_bytes = 8; }), HasSubstr("a size of 8"));
  EXPECT_THAT(sentence([](PluginHeader& h, char*) { h.size_bytes = 1u << 31; }),
              HasSubstr("a size of 2147483648"));
  EXPECT_THAT(sentence([](PluginHeader& h, char*) { h.reserved = 1; }), HasSubstr("reserved"));
  EXPECT_THAT(sentence([](PluginHeader& h, char*) { h.more_reserved = 1; }), HasSubstr("reserved"));
  EXPECT_THAT(sentence([](PluginHeader& h, char*) { h.option_stride = 8; }),
              HasSubstr("options of 8 bytes"));
  const char* beyond = "the descriptor's lists reach beyond its end";
  EXPECT_EQ(sentence([](PluginHeader& h, char*) { h.op_count = 4000; }), beyond);
  EXPECT_EQ(sentence([](PluginHeader& h, char*) { h.op_offset = 0xfffffff0; }), beyond);
  EXPECT_EQ(sentence([](PluginHeader& h, char*) { h.option_count = 0xffffffff; }), beyond);
  EXPECT_EQ(sentence([](PluginHeader& h, char*) { h.option_offset = h.size_bytes; }), beyond);
}

TEST_F(ReadPluginFileTest, RefusesWrongNames) {
  EXPECT_EQ(Refusal(folder_.Add("test_hook", "renamed")),
            "the plugin calls itself 'test_hook'; its file must be libengine_test_hook.so");
  EXPECT_EQ(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.name = "Test-Hook"; }),
            "the plugin's name 'Test-Hook' is not [a-z][a-z0-9_]*");
  EXPECT_THAT(
      RefusalOfPatched("test_hook", [](PluginHeader& h,
                                       char*) { std::memset(h.doc.text, 'x', sizeof h.doc.text); }),
      HasSubstr("text that does not end"));
  EXPECT_THAT(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.doc = "\033[2J"; }),
              HasSubstr("control characters"));
  EXPECT_EQ(RefusalOfPatched("test_hook", [](PluginHeader& h, char*) { h.device = "a b"; }),
            "the plugin's device 'a b' is not [a-z][a-z0-9_]*");
  EXPECT_EQ(RefusalOfPatched("test_hook",
                             [](PluginHeader& h, char*) { h.kind = static_cast<PluginKind>(77); }),
            "the plugin is of kind 77, which this engine does not know");
  std::filesystem::rename(folder_.Add("test_hook"), folder_.path() + "/hook.so");
  EXPECT_EQ(Refusal(folder_.path() + "/hook.so"),
            "the file of a plugin must be called libengine_<name>.so");
}

TEST_F(ReadPluginFileTest, RefusesWrongOps) {
  const auto with_op = [this](const OpName& name, int position) {
    return RefusalOfPatched("test_ops", [&](PluginHeader& h, char* bytes) {
      std::memcpy(bytes + h.op_offset + position * sizeof name, &name, sizeof name);
    });
  };
  EXPECT_EQ(with_op("relu", 2), "an op is listed twice");
  EXPECT_EQ(with_op("Relu", 1), "an op's name is not [a-z][a-z0-9_]*");
  EXPECT_THAT(RefusalOfPatched("test_ops", [](PluginHeader& h, char*) { h.op_count = 0; }),
              HasSubstr("lists 0 ops"));
  EXPECT_THAT(RefusalOfPatched("test_ops",
                               [](PluginHeader& h, char*) {
                                 h.kind = PluginKind::kHook;
                                 h.role = LayoutsOf(h.kind);
                               }),
              HasSubstr("of kind 'hook' and lists 3 ops"));
}

TEST_F(ReadPluginFileTest, RefusesWrongOptions) {
  const auto with_option = [this](auto change) {
    return RefusalOfPatched("test_sched", [&](PluginHeader& h, char* bytes) {
      OptionSpec spec;
      std::memcpy(static_cast<void*>(&spec), bytes + h.option_offset, sizeof spec);
      change(spec);
      std::memcpy(bytes + h.option_offset, static_cast<const void*>(&spec), sizeof spec);
    });
  };
  EXPECT_EQ(with_option([](OptionSpec& s) { s.default_value = "many"; }),
            "option 'credit' has a wrong default: 'many' is not of type int");
  EXPECT_EQ(with_option([](OptionSpec& s) { s.type = OptionType::kLayers; }),
            "the plugin is of kind 'scheduler' and has an option of layers, which only plugins of "
            "kind 'model' may have");
}

TEST_F(ReadPluginFileTest, ACheckTellsAllThatIsWrong) {
  const auto problems = [](const std::string& file) {
    std::vector<Status> found;
    EXPECT_EQ(CheckPluginFile(file, &found).path, file);
    std::string sentences;
    for (const Status& one : found) sentences += std::string(one.message()) + "\n";
    return sentences;
  };
  const std::string file = folder_.Add("test_sched");
  EXPECT_EQ(problems(file), "");
  EXPECT_EQ(problems(folder_.Add("unresolved")),
            folder_.File("unresolved") +
                ": plugin 'unresolved' cannot be loaded: " + folder_.File("unresolved") +
                ": undefined symbol: engine_fixture_defined_nowhere\n");
  // The names of the libraries that it needs stand in the file as text.
  std::string bytes = test::ReadWhole(file);
  for (size_t at; (at = bytes.find("libstdc++.so.6")) != bytes.npos;)
    bytes.replace(at, 7, "libgone");
  PluginFolder::WriteFile(file, bytes);
  EXPECT_THAT(problems(file), MatchesRegex(file + ": needs libgone..[.]so[.]6, which .*\n"));
  PluginFolder::Patch(file, [](PluginHeader& h, char*) { h.abi_major = 7; });
  std::filesystem::permissions(file, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  std::filesystem::remove(file + ".initialised");
  EXPECT_THAT(problems(file), MatchesRegex(file + ": everybody may replace it.*\n" + file +
                                           ": built for plugin ABI 7.*\n" + file + ": needs .*\n"));
  EXPECT_FALSE(folder_.Initialised("test_sched"));
}

TEST(PluginCatalog, ListsFoldersInOrderAndMarksTheShadowed) {
  PluginFolder first, second;
  first.Add("test_sched");
  first.Add("test_hook", "broken");
  second.Add("test_hook");
  second.Add("test_sched");
  PluginFolder::WriteFile(second.path() + "/libengine_notes.txt", "ignored");
  const auto catalog = PluginCatalog::Scan(
      {first.path(), "", "/nonexistent/folder", second.path(), first.path() + "/"});
  std::vector<std::string> seen;
  for (const PluginFile& entry : catalog.files()) {
    seen.push_back(entry.name + (entry.shadowed ? " shadowed" : "") +
                   (entry.problem.ok() ? "" : " broken"));
  }
  EXPECT_THAT(seen, ElementsAre("broken broken", "test_sched", "test_hook", "test_sched shadowed"));
  const auto found = ValueOf(catalog.Find("test_sched"));
  EXPECT_EQ(found.path, first.File("test_sched"));
}

TEST(PluginCatalog, NeverLooksIntoTheCurrentDirectory) {
  PluginFolder folder;
  folder.Add("test_sched");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto catalog = PluginCatalog::Scan({""});
  EXPECT_FALSE(catalog.Find("test_sched").ok());
  EXPECT_TRUE(catalog.Find("./libengine_test_sched.so").ok()) << "a path says where it is";
  std::filesystem::current_path(before);
  EXPECT_TRUE(catalog.files().empty());
}

TEST(PluginCatalog, SaysWhyAPluginIsNotFound) {
  PluginFolder folder;
  folder.Add("test_sched");
  folder.Add("test_hook", "broken");
  const auto catalog = PluginCatalog::Scan({folder.path()});
  const auto missing = catalog.Find("test_shced");
  EXPECT_EQ(missing.status().code(), StatusCode::kPlugin);
  EXPECT_STREQ(missing.status().message(), ("plugin 'test_shced' was not found in " +
                                            folder.path() + "; did you mean 'test_sched'?")
                                               .c_str());
  EXPECT_STREQ(catalog.Find("broken").status().message(),
               ("plugin 'broken': " + folder.File("broken") +
                ": the plugin calls itself 'test_hook'; its file must be libengine_test_hook.so")
                   .c_str());
  EXPECT_THAT(PluginCatalog::Scan({}).Find("x").status().message(), HasSubstr("none is searched"));
}

}  // namespace
}  // namespace engine::plugins
