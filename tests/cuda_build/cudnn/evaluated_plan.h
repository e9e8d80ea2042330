#pragma once

namespace engine::cuda_ops::test {

// How often plans that evaluate their graphs have run.
int EvaluatedPlanRuns();

}  // namespace engine::cuda_ops::test
