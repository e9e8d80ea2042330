#include "app/checkpoint/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <limits>
#include <thread>
#include <vector>

#include "app/checkpoint/spill_file.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::checkpoint {
namespace {

using test::ReadWhole;

Status WriteText(const std::string& path, std::string_view text) {
  ENGINE_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(file->Write(text.data(), text.size()));
  return file->Commit();
}

class AtomicFileTest : public ::testing::Test {
 protected:
  std::ptrdiff_t Files() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_ / "model";
};

TEST_F(AtomicFileTest, TellsProgressWhileItIsWritten) {
  int told = 0;
  const auto file = ValueOf(AtomicFile::Create(path_, [&] { ++told; }));
  const std::string part(16 << 20, 'x');
  for (int expected : {0, 1, 1, 2}) {
    ASSERT_THAT(file->Write(part.data(), part.size()), IsOk());
    EXPECT_EQ(told, expected);
  }
}

// From memory that lies in its pages as the file does in its own, and from other memory.
TEST_F(AtomicFileTest, PutsEachByteWhereItBelongs) {
  constexpr size_t kPage = AtomicFile::kPageBytes;
  std::string memory(10 * kPage, '\0');
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i % 251);
  const size_t to_page = kPage - reinterpret_cast<uintptr_t>(memory.data()) % kPage;
  const auto file = ValueOf(AtomicFile::Create(path_));
  const auto other = ValueOf(AtomicFile::Join(path_, file->temporary()));
  const size_t cuts[] = {0, 10, kPage, 3 * kPage, 5 * kPage + 7, 8 * kPage};
  std::string expected;
  for (const size_t shift : {0, 1}) {
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      const char* const data = memory.data() + to_page + shift + cuts[i];
      const size_t at = shift * 8 * kPage + cuts[i], size = cuts[i + 1] - cuts[i];
      ASSERT_THAT((i % 2 == 0 ? file : other)->WriteAt(at, data, size), IsOk());
      expected.append(data, size);
    }
  }
  ASSERT_THAT(other->Commit(), IsOk());
  ASSERT_THAT(file->Commit(), IsOk());
  EXPECT_TRUE(ReadWhole(path_) == expected);
}

TEST_F(AtomicFileTest, ReplacesTheTargetOnlyWhenItIsCommitted) {
  folder_.Write("model", "old");
  {
    const auto file = ValueOf(AtomicFile::Create(path_));
    ASSERT_THAT(file->Write("new", 3), IsOk());
    EXPECT_EQ(ReadWhole(path_), "old");
  }
  EXPECT_EQ(ReadWhole(path_), "old");
  EXPECT_EQ(Files(), 1) << "the temporary file is still there";
  ASSERT_TRUE(WriteText(path_, "new").ok());
  EXPECT_EQ(ReadWhole(path_), "new");
  EXPECT_EQ(Files(), 1);
}

TEST_F(AtomicFileTest, RemovesWhatAKilledWriterLeftAndKeepsWhatALivingOneWrites) {
  const std::string abandoned = folder_.Write(".model.tmp.1.1", "half");
  const std::string other = folder_.Write(".model2.tmp.1.1", "of another target");
  const auto living = ValueOf(AtomicFile::Create(path_));
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  std::thread([&] { EXPECT_TRUE(WriteText(path_, "first").ok()); }).join();
  ASSERT_TRUE(living->Write("second", 6).ok());
  EXPECT_TRUE(living->Commit().ok());
  EXPECT_EQ(ReadWhole(path_), "second");
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(Files(), 2);
}

TEST_F(AtomicFileTest, ParallelWritersOfOneTargetLeaveOneOfTheContents) {
  std::vector<std::thread> writers;
  for (char name : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([this, name] {
      for (int i = 0; i < 10; ++i) EXPECT_THAT(WriteText(path_, std::string(1000, name)), IsOk());
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = ReadWhole(path_);
  EXPECT_EQ(content, std::string(1000, content[0]));
  EXPECT_EQ(Files(), 1);
}

TEST_F(AtomicFileTest, NamesPathAndReasonWhenItCannotBeCreated) {
  folder_.Write("file", "");
  for (const std::string& path : {folder_ / "no/such/folder/model", folder_ / "file/model",
                                  std::string(folder_ / "name") + std::string(300, 'x')}) {
    EXPECT_THAT(
        WriteText(path, "x"),
        FailsWith(StatusCode::kStorage, HasSubstr("cannot write '" + path + "': create failed: ")));
  }
  for (const std::string& path : {std::string(), folder_ / "", std::string("/")}) {
    EXPECT_EQ(WriteText(path, "x").code(), StatusCode::kStorage) << path;
  }
}

TEST_F(AtomicFileTest, AFolderInTheWayStaysAndNothingElseIsLeft) {
  folder_.Write("model/inside", "kept");
  EXPECT_THAT(WriteText(path_, "x"), FailsWith(StatusCode::kStorage, HasSubstr("rename failed")));
  EXPECT_EQ(ReadWhole(folder_ / "model/inside"), "kept");
  EXPECT_EQ(Files(), 1);
}

// A limit on the size of files stands for a full disk: write() stops in the middle, then fails.
TEST_F(AtomicFileTest, ADeviceOrAPipeIsNotReplaced) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(WriteText(path_, "x"),
              FailsWith(StatusCode::kStorage, HasSubstr("a device or a pipe")));
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
  EXPECT_EQ(Files(), 1);
}

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFile) {
  folder_.Write("model", "old");
  struct rlimit saved {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &saved), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {10000, saved.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = WriteText(path_, std::string(20000, 'x'));
  setrlimit(RLIMIT_FSIZE, &saved);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_THAT(status, FailsWith(StatusCode::kStorage, HasSubstr("write failed: File too large")));
  EXPECT_EQ(ReadWhole(path_), "old");
  EXPECT_EQ(Files(), 1);
}

TEST(SpillFile, HoldsSeveralWhereThereIsRoomAndLeavesNoFile) {
  const test::TempFolder folder;
  SpillFile spill(folder / "x.safetensors"), nowhere(folder / "none/x.safetensors");
  float* const first = ValueOf(spill.Allocate(1000));
  std::fill_n(first, 1000, 1.0f);
  EXPECT_EQ(*ValueOf(spill.Allocate(1000)), 0);
  EXPECT_EQ(spill.Allocate(int64_t{1} << 55).status().code(), StatusCode::kStorage);
  EXPECT_EQ(nowhere.Allocate(8).status().code(), StatusCode::kStorage);
  EXPECT_EQ(first[999], 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FreeMemory, IsThatOfTheMachineAndOfTheControlGroupsAround) {
  const test::TempFolder root;
  const auto free = [&] { return FreeMemory(root.path()); };
  EXPECT_EQ(free(), std::numeric_limits<int64_t>::max());
  root.Write("proc/meminfo", "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:   8 kB\n");
  EXPECT_EQ(free(), 8192);
  root.Write("proc/self/cgroup", "0::/job/task\n");
  root.Write("sys/fs/cgroup/job/task/memory.max", "max\n");
  EXPECT_EQ(free(), 8192);
  root.Write("sys/fs/cgroup/job/memory.max", "9000\n");
  root.Write("sys/fs/cgroup/job/memory.current", "8500\n");
  root.Write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100\n");
  EXPECT_EQ(free(), 600);
}

}  // namespace
}  // namespace engine::checkpoint
