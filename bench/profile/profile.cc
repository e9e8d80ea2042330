#include "bench/profile/profile.h"

namespace engine::bench {
namespace {

// The bias of fc8 became ready on its own: 1000 values, which two decimals of a megabyte round to
// 0.
constexpr ProfileLayer kVgg16[] = {
    {"fc8_bias", 0.48, 0.004}, {"fc8", 0.35, 16.40},     {"fc7", 1.62, 67.13},
    {"fc6", 3.73, 411.05},     {"conv5_3", 2.11, 9.44},  {"conv5_2", 2.14, 9.44},
    {"conv5_1", 6.43, 9.44},   {"conv4_3", 6.00, 9.44},  {"conv4_2", 3.69, 9.44},
    {"conv4_1", 7.96, 4.72},   {"conv3_3", 7.48, 2.36},  {"conv3_2", 4.92, 2.36},
    {"conv3_1", 16.81, 1.18},  {"conv2_2", 10.07, 0.59}, {"conv2_1", 27.84, 0.30},
    {"conv1", 9.99, 0.16},
};

// 161 tensors in 18 groups of neighbours.
constexpr ProfileLayer kResNet50[] = {
    {"group18", 1.7, 12.41}, {"group17", 2.4, 17.85}, {"group16", 3.6, 22.06},
    {"group15", 4.2, 15.75}, {"group14", 2.4, 4.47},  {"group13", 2.3, 4.47},
    {"group12", 2.3, 4.47},  {"group11", 2.4, 4.47},  {"group10", 2.4, 4.47},
    {"group9", 4.5, 5.52},   {"group8", 3.4, 1.38},   {"group7", 2.8, 1.12},
    {"group6", 2.9, 1.12},   {"group5", 4.0, 1.06},   {"group4", 7.0, 0.79},
    {"group3", 5.2, 0.28},   {"group2", 5.5, 0.28},   {"group1", 5.8, 0.27},
};

constexpr LayerProfile kProfiles[] = {
    {"vgg16", "VGG-16 with batch norm, batch 32, one V100; logs of netx-repo/training-bottleneck",
     82.9, kVgg16},
    {"resnet50", "ResNet-50, batch 32, one V100; logs of netx-repo/training-bottleneck", 63.3,
     kResNet50},
};

}  // namespace

Result<LayerProfile> FindProfile(std::string_view name) {
  std::string known;
  for (const LayerProfile& profile : kProfiles) {
    if (profile.name == name) return profile;
    known += (known.empty() ? "" : ", ") + std::string(profile.name);
  }
  return Status::Error(StatusCode::kInvalidArgument, "there is no profile '%.*s'; there are: %s",
                       static_cast<int>(name.size()), name.data(), known.c_str());
}

}  // namespace engine::bench
