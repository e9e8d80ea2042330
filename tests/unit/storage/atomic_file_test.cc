#include "app/checkpoint/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.h"

namespace engine::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::ReadWhole;
using testing::TempFolder;

size_t FilesIn(const TempFolder& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

Status WriteText(const std::string& path, std::string_view text) {
  ENGINE_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(file->Write(text.data(), text.size()));
  return file->Commit();
}

TEST(AtomicFile, ReplacesTheTargetOnlyWhenItIsCommitted) {
  TempFolder folder;
  const std::string path = folder.Write("model", "old");
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Write("new", 3).ok());
    EXPECT_EQ(ReadWhole(path), "old");
  }
  EXPECT_EQ(ReadWhole(path), "old");
  EXPECT_EQ(FilesIn(folder), 1u) << "the temporary file is still there";
  ASSERT_TRUE(WriteText(path, "new").ok());
  EXPECT_EQ(ReadWhole(path), "new");
  EXPECT_EQ(FilesIn(folder), 1u);
}

TEST(AtomicFile, RemovesWhatAKilledWriterLeftAndKeepsWhatALivingOneWrites) {
  TempFolder folder;
  const std::string path = folder / "model";
  const std::string abandoned = folder.Write(".model.tmp.1.1", "half");
  const std::string other = folder.Write(".model2.tmp.1.1", "of another target");
  auto living = AtomicFile::Create(path);
  ASSERT_TRUE(living.ok());
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  std::thread([&] { EXPECT_TRUE(WriteText(path, "first").ok()); }).join();
  ASSERT_TRUE((*living)->Write("second", 6).ok());
  EXPECT_TRUE((*living)->Commit().ok());
  EXPECT_EQ(ReadWhole(path), "second");
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(FilesIn(folder), 2u);
}

TEST(AtomicFile, ParallelWritersOfOneTargetLeaveOneOfTheContents) {
  TempFolder folder;
  const std::string path = folder / "model";
  std::vector<std::thread> writers;
  for (char name : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&path, name] {
      for (int i = 0; i < 10; ++i) {
        const Status status = WriteText(path, std::string(1000, name));
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = ReadWhole(path);
  EXPECT_EQ(content, std::string(1000, content[0]));
  EXPECT_EQ(FilesIn(folder), 1u);
}

TEST(AtomicFile, NamesPathAndReasonWhenItCannotBeCreated) {
  TempFolder folder;
  folder.Write("file", "");
  for (const std::string& path : {folder / "no/such/folder/model", folder / "file/model",
                                  std::string(folder / "name") + std::string(300, 'x')}) {
    const Status status = WriteText(path, "x");
    EXPECT_EQ(status.code(), StatusCode::kStorage);
    EXPECT_THAT(status.message(), HasSubstr("cannot write '" + path + "': create failed: "));
  }
  for (const std::string& path : {std::string(), folder / "", std::string("/")}) {
    EXPECT_EQ(WriteText(path, "x").code(), StatusCode::kStorage) << path;
  }
}

TEST(AtomicFile, AFolderInTheWayStaysAndNothingElseIsLeft) {
  TempFolder folder;
  folder.Write("model/inside", "kept");
  const Status status = WriteText(folder / "model", "x");
  EXPECT_EQ(status.code(), StatusCode::kStorage);
  EXPECT_THAT(status.message(), HasSubstr("rename failed"));
  EXPECT_EQ(ReadWhole(folder / "model/inside"), "kept");
  EXPECT_EQ(FilesIn(folder), 1u);
}

// A limit on the size of files stands for a full disk: write() stops in the middle, then fails.
TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  TempFolder folder;
  const std::string path = folder.Write("model", "old");
  struct rlimit saved {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &saved), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {10000, saved.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = WriteText(path, std::string(20000, 'x'));
  setrlimit(RLIMIT_FSIZE, &saved);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_EQ(status.code(), StatusCode::kStorage);
  EXPECT_THAT(status.message(), HasSubstr("write failed: File too large"));
  EXPECT_EQ(ReadWhole(path), "old");
  EXPECT_EQ(FilesIn(folder), 1u);
}

}  // namespace
}  // namespace engine::checkpoint
