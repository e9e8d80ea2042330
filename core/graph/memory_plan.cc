#include "core/graph/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace engine::graph {
namespace {

constexpr size_t kAlignment = 64;

size_t Align(size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}
bool Has(uint32_t mask, size_t bit) {
  return (mask >> bit & 1u) != 0;
}

// One use of a tensor by an instruction. A tensor is a value, a gradient or what a node saves,
// numbered in one sequence; tensors that alias share a storage.
struct Access {
  int32_t instruction;
  int32_t tensor;
  bool write;
};

class Planner {
 public:
  Planner(const Graph& graph, const Program& program)
      : graph_(graph),
        program_(program),
        gradients_from_(static_cast<int32_t>(graph.values.size())),
        saved_from_(gradients_from_ + static_cast<int32_t>(program.gradients.size())),
        parent_(saved_from_ + graph.nodes.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  MemoryPlan Run() {
    CollectAccesses();
    MergeAliases();
    MakeStorages();
    PlaceArena();
    FindDependencies();
    for (const Node& node : graph_.nodes) {
      plan_.workspace_bytes =
          std::max(plan_.workspace_bytes, static_cast<size_t>(node.signature.workspace_bytes));
    }
    return std::move(plan_);
  }

 private:
  int32_t GradientTensor(GradientId id) const { return gradients_from_ + id; }
  int32_t SavedTensor(NodeId id) const { return saved_from_ + id; }

  void Add(int32_t instruction, int32_t tensor, bool write) {
    accesses_.push_back({instruction, tensor, write});
  }

  void CollectAccesses() {
    for (size_t k = 0; k < program_.instructions.size(); ++k) {
      const Instruction& instruction = program_.instructions[k];
      const auto at = static_cast<int32_t>(k);
      const Node& node = graph_.nodes[instruction.node];
      switch (instruction.kind) {
        case InstructionKind::kForward:
          for (ValueId input : node.inputs) {
            Add(at, input, false);
            if (IsBuffer(input)) Add(at, input, true);
          }
          for (ValueId output : node.outputs) Add(at, output, true);
          if (node.signature.saved_bytes > 0) Add(at, SavedTensor(instruction.node), true);
          break;
        case InstructionKind::kBackward:
          CollectBackward(at, instruction, node);
          break;
        case InstructionKind::kAdd:
          Add(at, GradientTensor(instruction.source), false);
          Add(at, GradientTensor(instruction.target), false);
          Add(at, GradientTensor(instruction.target), true);
          break;
      }
    }
    // The caller reads the outputs after the forward pass.
    for (const GraphOutput& output : graph_.outputs) {
      if (output.value != kNone) Add(program_.forward_count - 1, output.value, false);
    }
    std::stable_sort(accesses_.begin(), accesses_.end(), [](const Access& a, const Access& b) {
      return a.instruction < b.instruction;
    });
  }

  void CollectBackward(int32_t at, const Instruction& instruction, const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (Has(node.signature.backward_reads_inputs, i)) Add(at, node.inputs[i], false);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (Has(node.signature.backward_reads_outputs, i)) Add(at, node.outputs[i], false);
      const GradientId gradient = instruction.output_grads[i];
      if (gradient != kNone) Add(at, GradientTensor(gradient), false);
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GradientId gradient = instruction.input_grads[i];
      if (gradient == kNone) continue;
      if (Has(instruction.accumulate, i)) Add(at, GradientTensor(gradient), false);
      Add(at, GradientTensor(gradient), true);
    }
    if (node.signature.saved_bytes > 0) Add(at, SavedTensor(instruction.node), false);
  }

  bool IsBuffer(ValueId value) const {
    const int32_t parameter = graph_.values[value].parameter;
    return parameter != kNone && graph_.parameters[parameter].buffer;
  }

  int32_t Root(int32_t tensor) const {
    while (parent_[tensor] != tensor) tensor = parent_[tensor];
    return tensor;
  }

  // Memory that exists outside the arena cannot be given to another tensor.
  bool External(int32_t root) const {
    if (root < gradients_from_) {
      return graph_.values[root].kind != ValueKind::kActivation || root == graph_.loss;
    }
    if (root >= saved_from_) return false;
    const Gradient& gradient = program_.gradients[root - gradients_from_];
    return gradient.seed ||
           (!gradient.partial && graph_.values[gradient.of].kind == ValueKind::kParameter);
  }

  // Makes `alias` share the memory of `base` if no tensor of one is read in or after an instruction
  // that writes through the other: then every read still finds what it found before. `definition`
  // is the instruction that would copy. The write of a definition itself does not count: it becomes
  // the identity.
  void TryMerge(int32_t base, int32_t alias, int32_t definition, bool must) {
    const int32_t a = Root(base), b = Root(alias);
    if (a == b) return;
    if (!must) {
      if (External(b) || External(a)) return;
      for (const Access& write : accesses_) {
        if (!write.write || write.instruction == definition) continue;
        const int32_t written = Root(write.tensor);
        if (written != a && written != b) continue;
        const int32_t other = written == a ? b : a;
        for (const Access& read : accesses_) {
          if (!read.write && Root(read.tensor) == other && read.instruction >= write.instruction &&
              write.instruction > definition) {
            return;
          }
        }
      }
    }
    parent_[b] = a;
  }

  void MergeAliases() {
    for (int32_t k = 0; k < program_.forward_count; ++k) {
      const Node& node = graph_.nodes[program_.instructions[k].node];
      const OpSignature& signature = node.signature;
      if (signature.output_is_view_of >= 0) {
        TryMerge(node.inputs[signature.output_is_view_of], node.outputs[0], k, true);
      } else if (signature.in_place_of >= 0) {
        TryInPlace(node.inputs[signature.in_place_of], node.outputs[0], k);
      }
    }
    for (size_t k = program_.forward_count; k < program_.instructions.size(); ++k) {
      const Instruction& instruction = program_.instructions[k];
      if (instruction.kind != InstructionKind::kBackward) continue;
      const Node& node = graph_.nodes[instruction.node];
      TryGradientInPlace(static_cast<int32_t>(k), instruction, node);
      TryEqualGradients(static_cast<int32_t>(k), instruction, node);
      if (instruction.output_grads[0] == kNone) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!Has(node.signature.passes_gradient, i) || instruction.input_grads[i] == kNone)
          continue;
        TryMerge(GradientTensor(instruction.output_grads[0]),
                 GradientTensor(instruction.input_grads[i]), static_cast<int32_t>(k), false);
      }
    }
  }

  // Gradients that are made here and are the same: each in the memory of the first one that nobody
  // changes while the other is of use.
  void TryEqualGradients(int32_t k, const Instruction& instruction, const Node& node) {
    const uint32_t made = node.signature.equal_gradients & ~instruction.accumulate;
    for (size_t j = 1; j < node.inputs.size(); ++j) {
      if (!Has(made, j) || instruction.input_grads[j] == kNone) continue;
      const int32_t alias = GradientTensor(instruction.input_grads[j]);
      for (size_t i = 0; i < j && IsFirstAccess(alias, k); ++i) {
        if (!Has(made, i) || instruction.input_grads[i] == kNone) continue;
        const int32_t base = GradientTensor(instruction.input_grads[i]);
        if (SizeBytes(base) == SizeBytes(alias)) TryMerge(base, alias, k, false);
      }
    }
  }

  // Whether nothing uses the memory of `tensor` before instruction `k`.
  bool IsFirstAccess(int32_t tensor, int32_t k) const {
    return std::none_of(accesses_.begin(), accesses_.end(), [&](const Access& access) {
      return access.instruction < k && Root(access.tensor) == Root(tensor);
    });
  }

  // The gradient of an input in the memory of the input, which nobody reads any more when the
  // forward pass of the op is over.
  void TryGradientInPlace(int32_t k, const Instruction& instruction, const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GradientId gradient = instruction.input_grads[i];
      if (!Has(node.signature.gradient_in_place, i) || gradient == kNone) continue;
      const auto forward = static_cast<int32_t>(instruction.node);
      const int32_t input = Root(node.inputs[i]);
      const int32_t target = Root(GradientTensor(gradient));
      const bool in_use =
          std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& access) {
            const int32_t tensor = Root(access.tensor);
            return (tensor == input && access.instruction > forward && access.instruction != k) ||
                   (tensor == target && access.instruction < k);
          });
      if (!in_use && !External(input) && !External(target) &&
          SizeBytes(input) == SizeBytes(target)) {
        parent_[target] = input;
      }
    }
  }

  // An op may overwrite its input if nobody reads the old content afterwards.
  void TryInPlace(int32_t input, int32_t output, int32_t at) {
    const int32_t root = Root(input);
    if (External(root) || External(Root(output))) return;
    if (SizeBytes(input) != SizeBytes(output)) return;
    for (const Access& access : accesses_) {
      if (Root(access.tensor) == root && access.instruction > at) return;
    }
    parent_[Root(output)] = root;
  }

  size_t SizeBytes(int32_t tensor) const {
    if (tensor >= saved_from_) {
      return static_cast<size_t>(graph_.nodes[tensor - saved_from_].signature.saved_bytes);
    }
    const ValueId value =
        tensor < gradients_from_ ? tensor : program_.gradients[tensor - gradients_from_].of;
    const Value& of = graph_.values[value];
    const bool full = of.kind == ValueKind::kParameter && tensor >= gradients_from_;
    return static_cast<size_t>(of.spec.shape.Count()) *
           SizeOf(full ? DType::kFloat32 : of.spec.dtype);
  }

  Storage DescribeRoot(int32_t root) const {
    Storage storage{.size_bytes = SizeBytes(root)};
    if (root < gradients_from_) {
      const Value& value = graph_.values[root];
      if (value.kind == ValueKind::kInput) {
        storage.kind = StorageKind::kInput;
        storage.index = root;
      } else if (value.kind == ValueKind::kParameter) {
        storage.kind = StorageKind::kParameter;
        storage.index = value.parameter;
      } else if (root == graph_.loss) {
        storage.kind = StorageKind::kLoss;
      }
    } else if (External(root)) {
      const Gradient& gradient = program_.gradients[root - gradients_from_];
      storage.kind = gradient.seed ? StorageKind::kSeed : StorageKind::kParameterGradient;
      storage.index = gradient.seed ? kNone : graph_.values[gradient.of].parameter;
    }
    return storage;
  }

  void MakeStorages() {
    std::vector<StorageId> of_root(parent_.size(), kNone);
    const auto storage_of = [&](int32_t tensor) {
      const int32_t root = Root(tensor);
      if (of_root[root] == kNone) {
        of_root[root] = static_cast<StorageId>(plan_.storages.size());
        plan_.storages.push_back(DescribeRoot(root));
      }
      Storage& storage = plan_.storages[of_root[root]];
      storage.size_bytes = std::max(storage.size_bytes, SizeBytes(tensor));
      return of_root[root];
    };
    for (int32_t i = 0; i < gradients_from_; ++i) plan_.of_value.push_back(storage_of(i));
    for (int32_t i = gradients_from_; i < saved_from_; ++i)
      plan_.of_gradient.push_back(storage_of(i));
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const bool saves = graph_.nodes[i].signature.saved_bytes > 0;
      plan_.of_saved.push_back(saves ? storage_of(SavedTensor(static_cast<NodeId>(i))) : kNone);
    }
    for (const Access& access : accesses_) {
      Storage& storage = plan_.storages[of_root[Root(access.tensor)]];
      storage.first = std::min(storage.first, access.instruction);
      storage.last = std::max(storage.last, access.instruction);
    }
  }

  // Greedy by size: each storage at the lowest offset that is free during its life.
  void PlaceArena() {
    std::vector<StorageId> order;
    for (size_t i = 0; i < plan_.storages.size(); ++i) {
      if (plan_.storages[i].kind == StorageKind::kArena) order.push_back(static_cast<StorageId>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](StorageId a, StorageId b) {
      return plan_.storages[a].size_bytes > plan_.storages[b].size_bytes;
    });
    std::vector<StorageId> placed;  // sorted by offset
    for (StorageId id : order) {
      Storage& storage = plan_.storages[id];
      size_t offset = 0;
      for (StorageId other_id : placed) {
        const Storage& other = plan_.storages[other_id];
        if (other.last < storage.first || other.first > storage.last) continue;
        if (offset + storage.size_bytes <= other.offset) break;
        offset = std::max(offset, Align(other.offset + other.size_bytes));
      }
      storage.offset = offset;
      plan_.arena_bytes = std::max(plan_.arena_bytes, Align(offset + storage.size_bytes));
      const auto at =
          std::lower_bound(placed.begin(), placed.end(), id, [&](StorageId a, StorageId b) {
            return plan_.storages[a].offset < plan_.storages[b].offset;
          });
      placed.insert(at, id);
    }
  }

  StorageId StorageOf(int32_t tensor) const {
    if (tensor < gradients_from_) return plan_.of_value[tensor];
    if (tensor < saved_from_) return plan_.of_gradient[tensor - gradients_from_];
    return plan_.of_saved[tensor - saved_from_];
  }

  // Read after write, write after read and write after write on one storage; and, where two
  // storages share bytes, everything done with the earlier one before the first access to the later
  // one.
  void FindDependencies() {
    const size_t count = plan_.storages.size();
    std::vector<int32_t> writer(count, kNone);
    std::vector<std::vector<int32_t>> readers(count), users(count);
    plan_.depends_on.resize(program_.instructions.size());
    for (const Access& access : accesses_) {
      const StorageId id = StorageOf(access.tensor);
      const int32_t at = access.instruction;
      if (users[id].empty()) DependOnFormerUsers(id, at, users);
      users[id].push_back(at);
      if (writer[id] != kNone) Depend(at, writer[id]);
      if (access.write) {
        for (int32_t reader : readers[id]) Depend(at, reader);
        readers[id].clear();
        writer[id] = at;
      } else {
        readers[id].push_back(at);
      }
    }
    ReduceDependencies();
  }

  // Keeps only the edges that no path of other edges implies.
  void ReduceDependencies() {
    const size_t count = plan_.depends_on.size();
    std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
    for (size_t k = 0; k < count; ++k) {
      std::vector<int32_t>& list = plan_.depends_on[k];
      std::sort(list.rbegin(), list.rend());
      std::vector<int32_t> kept;
      for (int32_t earlier : list) {
        if (before[k][earlier]) continue;
        kept.push_back(earlier);
        before[k][earlier] = true;
        for (int32_t i = 0; i < earlier; ++i) {
          if (before[earlier][i]) before[k][i] = true;
        }
      }
      list.assign(kept.rbegin(), kept.rend());
    }
  }

  void DependOnFormerUsers(StorageId id, int32_t at,
                           const std::vector<std::vector<int32_t>>& users) {
    const Storage& storage = plan_.storages[id];
    if (storage.kind != StorageKind::kArena) return;
    for (size_t i = 0; i < plan_.storages.size(); ++i) {
      const Storage& other = plan_.storages[i];
      if (other.kind != StorageKind::kArena || other.last >= storage.first) continue;
      const bool overlap = other.offset < storage.offset + storage.size_bytes &&
                           storage.offset < other.offset + other.size_bytes;
      if (!overlap) continue;
      for (int32_t user : users[i]) Depend(at, user);
    }
  }

  void Depend(int32_t later, int32_t earlier) {
    if (later != earlier) plan_.depends_on[later].push_back(earlier);
  }

  const Graph& graph_;
  const Program& program_;
  const int32_t gradients_from_, saved_from_;
  std::vector<int32_t> parent_;  // union-find over tensors that share memory; a root stands for all
  std::vector<Access> accesses_;
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan PlanMemory(const Graph& graph, const Program& program) {
  return Planner(graph, program).Run();
}

}  // namespace engine::graph
