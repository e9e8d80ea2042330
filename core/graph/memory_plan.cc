// A tensor is a value, a gradient or what a node saves, numbered in one sequence. Tensors that may
// lie in the same memory are joined; each group is a storage, whose life reaches from its first
// access to its last one in sequential order. Storages of the arena whose lives do not meet may get
// the same bytes. The dependencies that follow from both keep every access between the same two
// writes, whatever order tasks run in, and so the bits of every result.
#include "core/graph/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace engine::graph {
namespace {

constexpr size_t kAlignment = 64;

size_t Align(size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// One use of a tensor by an instruction.
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
        parent_(saved_from_ + program.instructions.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  MemoryPlan Run() {
    MakeTensors();
    CollectAccesses();
    ShareInForward();
    ShareInBackward();
    MakeStorages();
    PlaceArena();
    FindDependencies();
    ReduceDependencies();
    return std::move(plan_);
  }

 private:
  int32_t InstructionCount() const { return static_cast<int32_t>(program_.instructions.size()); }
  int32_t GradientTensor(GradientId id) const { return id == kNone ? kNone : gradients_from_ + id; }
  int32_t SavedTensor(const Instruction& instruction) const {
    const bool saves = graph_.nodes[instruction.node].signature.saved_bytes > 0;
    return saves ? saved_from_ + instruction.forward : kNone;
  }

  static size_t SizeOfValue(const Value& value, DType dtype) {
    return static_cast<size_t>(value.spec.shape.Count()) * SizeOf(dtype);
  }

  void MakeTensors() {
    for (ValueId id = 0; id < gradients_from_; ++id) {
      const Value& value = graph_.values[id];
      Storage& tensor = tensors_.emplace_back();
      tensor.size_bytes = SizeOfValue(value, value.spec.dtype);
      tensor.index = value.parameter;
      if (value.kind == ValueKind::kInput) tensor.kind = StorageKind::kInput;
      if (value.kind == ValueKind::kParameter) tensor.kind = StorageKind::kParameter;
      if (id == graph_.loss) tensor.kind = StorageKind::kLoss;
    }
    for (const Gradient& gradient : program_.gradients) {
      const Value& of = graph_.values[gradient.of];
      const bool full = of.kind == ValueKind::kParameter;
      Storage& tensor = tensors_.emplace_back();
      tensor.size_bytes = SizeOfValue(of, full ? DType::kFloat32 : of.spec.dtype);
      if (full && !gradient.partial) tensor.kind = StorageKind::kParameterGradient;
      if (full && !gradient.partial) tensor.index = of.parameter;
      if (gradient.seed) tensor.kind = StorageKind::kSeed;
    }
    for (const Instruction& instruction : program_.instructions) {
      const OpSignature& op = graph_.nodes[instruction.node].signature;
      const bool saves = SavedTensor(instruction) == static_cast<int32_t>(tensors_.size());
      tensors_.push_back({.size_bytes = saves ? static_cast<size_t>(op.saved_bytes) : 0});
      plan_.workspace_bytes =
          std::max(plan_.workspace_bytes, static_cast<size_t>(op.workspace_bytes));
    }
  }

  void Add(int32_t instruction, int32_t tensor, bool write) {
    if (tensor != kNone) accesses_.push_back({instruction, tensor, write});
  }

  void CollectAccesses() {
    for (int32_t at = 0; at < InstructionCount(); ++at) {
      const Instruction& instruction = program_.instructions[at];
      const Node& node = graph_.nodes[instruction.node];
      Add(at, GradientTensor(instruction.source), false);
      Add(at, GradientTensor(instruction.target), false);
      Add(at, GradientTensor(instruction.target), true);
      if (instruction.kind == InstructionKind::kBackward) {
        CollectBackward(at, instruction, node);
      } else if (instruction.kind != InstructionKind::kAdd) {
        CollectForward(at, instruction, node);
      }
    }
  }

  void CollectForward(int32_t at, const Instruction& instruction, const Node& node) {
    for (ValueId input : node.inputs) {
      Add(at, instruction.Of(graph_, input), false);
      if (IsBuffer(input)) Add(at, input, true);
    }
    for (ValueId output : node.outputs) Add(at, instruction.Of(graph_, output), true);
    Add(at, SavedTensor(instruction), true);
    if (at != program_.forward_count - 1) return;
    // The caller reads the outputs after the forward pass.
    for (const GraphOutput& output : graph_.outputs) Add(at, output.value, false);
  }

  void CollectBackward(int32_t at, const Instruction& instruction, const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool reads = Has(node.signature.backward_reads_inputs, i);
      Add(at, reads ? instruction.Of(graph_, node.inputs[i]) : kNone, false);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const bool reads = Has(node.signature.backward_reads_outputs, i);
      Add(at, reads ? instruction.Of(graph_, node.outputs[i]) : kNone, false);
      Add(at, GradientTensor(instruction.output_grads[i]), false);
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int32_t gradient = GradientTensor(instruction.input_grads[i]);
      if (Has(instruction.accumulate, i)) Add(at, gradient, false);
      Add(at, gradient, true);
    }
    Add(at, SavedTensor(instruction), false);
  }

  bool IsBuffer(ValueId value) const {
    const int32_t parameter = graph_.values[value].parameter;
    return parameter != kNone && graph_.parameters[parameter].buffer;
  }

  int32_t Root(int32_t tensor) const {
    while (parent_[tensor] != tensor) tensor = parent_[tensor];
    return tensor;
  }
  // What lies elsewhere has its place already.
  bool InArena(int32_t tensor) const { return tensors_[Root(tensor)].kind == StorageKind::kArena; }

  // Whether anything uses the memory of `tensor` before instruction `at`.
  bool IsUsedBefore(int32_t tensor, int32_t at) const {
    return std::ranges::any_of(accesses_, [&](const Access& access) {
      return access.instruction < at && Root(access.tensor) == Root(tensor);
    });
  }

  // Whether an instruction after `definition` writes to the memory of `written`, and that of `read`
  // is read then or later.
  bool IsReadAfterWrite(int32_t written, int32_t read, int32_t definition) const {
    int32_t first_write = INT32_MAX, last_read = -1;
    for (const Access& access : accesses_) {
      const int32_t root = Root(access.tensor);
      if (!access.write && root == read) last_read = std::max(last_read, access.instruction);
      if (access.write && root == written && access.instruction > definition) {
        first_write = std::min(first_write, access.instruction);
      }
    }
    return last_read >= first_write;
  }

  // Two tensors with the same content, which instruction `definition` would copy: they share memory
  // if every read of either still finds that content. The write of the definition itself does not
  // count: it becomes the identity.
  void TryShare(int32_t base, int32_t alias, int32_t definition) {
    const int32_t a = Root(base), b = Root(alias);
    if (a == b || !InArena(a) || !InArena(b)) return;
    if (IsReadAfterWrite(a, b, definition) || IsReadAfterWrite(b, a, definition)) return;
    parent_[b] = a;
  }

  // The instruction `first` makes `next` where `former` lies, if nobody but itself uses that after
  // the instruction `last`.
  void TryTakeOver(int32_t former, int32_t next, int32_t last, int32_t first) {
    if (!InArena(former) || !InArena(next) || IsUsedBefore(next, first)) return;
    if (tensors_[former].size_bytes != tensors_[next].size_bytes) return;
    const int32_t root = Root(former);
    for (const Access& access : accesses_) {
      const bool later = access.instruction > last && access.instruction != first;
      if (later && Root(access.tensor) == root) return;
    }
    parent_[Root(next)] = root;
  }

  void ShareInForward() {
    for (int32_t k = 0; k < InstructionCount(); ++k) {
      const Instruction& instruction = program_.instructions[k];
      if (instruction.forward != k) continue;
      const Node& node = graph_.nodes[instruction.node];
      const OpSignature& signature = node.signature;
      const ValueId output = instruction.Of(graph_, node.outputs[0]);
      const auto input = [&](int32_t i) { return instruction.Of(graph_, node.inputs[i]); };
      if (signature.output_is_view_of >= 0) {
        parent_[Root(output)] = Root(input(signature.output_is_view_of));
      } else if (signature.in_place_of >= 0) {
        TryTakeOver(input(signature.in_place_of), output, k, k);
      }
    }
  }

  void ShareInBackward() {
    for (int32_t at = program_.forward_count; at < InstructionCount(); ++at) {
      const Instruction& instruction = program_.instructions[at];
      if (instruction.kind != InstructionKind::kBackward) continue;
      const OpSignature& signature = graph_.nodes[instruction.node].signature;
      const std::vector<ValueId>& inputs = graph_.nodes[instruction.node].inputs;
      // In the memory of the input, which nobody reads any more when the forward pass of the op is
      // over.
      for (size_t i = 0; i < inputs.size(); ++i) {
        const int32_t gradient = GradientTensor(instruction.input_grads[i]);
        if (!Has(signature.gradient_in_place, i) || gradient == kNone) continue;
        TryTakeOver(instruction.Of(graph_, inputs[i]), gradient, instruction.forward, at);
      }
      ShareEqualGradients(at, instruction, signature.equal_gradients & ~instruction.accumulate);
      for (size_t i = 0; i < inputs.size() && instruction.output_grads[0] != kNone; ++i) {
        const int32_t gradient = GradientTensor(instruction.input_grads[i]);
        if (!Has(signature.passes_gradient, i) || gradient == kNone) continue;
        TryShare(GradientTensor(instruction.output_grads[0]), gradient, at);
      }
    }
  }

  // Gradients of the inputs in `made`, which instruction `at` makes and which are the same: each in
  // the memory of the first one that nobody changes while the other is of use.
  void ShareEqualGradients(int32_t at, const Instruction& instruction, uint32_t made) {
    const std::vector<GradientId>& gradients = instruction.input_grads;
    for (size_t j = 1; j < gradients.size(); ++j) {
      if (!Has(made, j) || gradients[j] == kNone) continue;
      const int32_t alias = GradientTensor(gradients[j]);
      for (size_t i = 0; i < j && !IsUsedBefore(alias, at); ++i) {
        if (!Has(made, i) || gradients[i] == kNone) continue;
        const int32_t base = GradientTensor(gradients[i]);
        if (tensors_[base].size_bytes == tensors_[alias].size_bytes) TryShare(base, alias, at);
      }
    }
  }

  void MakeStorages() {
    storage_of_.assign(tensors_.size(), kNone);
    for (int32_t i = 0; i < static_cast<int32_t>(tensors_.size()); ++i) {
      if (i >= saved_from_ && tensors_[i].size_bytes == 0) continue;
      const int32_t root = Root(i);
      if (storage_of_[root] == kNone) {
        storage_of_[root] = static_cast<StorageId>(plan_.storages.size());
        plan_.storages.push_back(tensors_[root]);
      }
      storage_of_[i] = storage_of_[root];
      Storage& storage = plan_.storages[storage_of_[i]];
      storage.size_bytes = std::max(storage.size_bytes, tensors_[i].size_bytes);
    }
    for (const Access& access : accesses_) {
      Storage& storage = plan_.storages[storage_of_[access.tensor]];
      storage.first = std::min(storage.first, access.instruction);
      storage.last = std::max(storage.last, access.instruction);
    }
    for (Storage& storage : plan_.storages) {
      if (storage.kind != StorageKind::kInput) continue;
      storage.offset = plan_.input_bytes;
      plan_.input_bytes += Align(storage.size_bytes);
    }
    const auto begin = storage_of_.begin();
    plan_.of_value.assign(begin, begin + gradients_from_);
    plan_.of_gradient.assign(begin + gradients_from_, begin + saved_from_);
    plan_.of_saved.assign(begin + saved_from_, storage_of_.end());
  }

  // Greedy by size: each storage at the lowest offset that is free during its life.
  void PlaceArena() {
    std::vector<Storage*> order;
    for (Storage& storage : plan_.storages) {
      if (storage.kind == StorageKind::kArena) order.push_back(&storage);
    }
    std::ranges::stable_sort(order, std::greater<>(), &Storage::size_bytes);
    std::vector<const Storage*> placed;  // sorted by offset
    for (Storage* const storage : order) {
      size_t& offset = storage->offset;
      for (const Storage* const other : placed) {
        if (other->last < storage->first || other->first > storage->last) continue;
        if (offset + storage->size_bytes <= other->offset) break;
        offset = std::max(offset, Align(other->offset + other->size_bytes));
      }
      plan_.arena_bytes = std::max(plan_.arena_bytes, Align(offset + storage->size_bytes));
      placed.insert(std::ranges::lower_bound(placed, offset, {}, &Storage::offset), storage);
    }
  }

  // Whether `later`, if anything is ever in it, lies where `former` did.
  static bool Replaces(const Storage& former, const Storage& later) {
    return former.kind == StorageKind::kArena && later.kind == StorageKind::kArena &&
           former.last < later.first && later.last >= 0 &&
           former.offset < later.offset + later.size_bytes &&
           later.offset < former.offset + former.size_bytes;
  }

  // Read after write, write after read and write after write in one storage; and, where two share
  // bytes, all use of the former one before the first access to the later one.
  void FindDependencies() {
    plan_.depends_on.resize(program_.instructions.size());
    const auto depend = [this](int32_t later, int32_t earlier) {
      if (later != earlier) plan_.depends_on[later].push_back(earlier);
    };
    std::vector<std::vector<Access>> uses(plan_.storages.size());
    for (const Access& access : accesses_) {
      std::vector<Access>& of_storage = uses[storage_of_[access.tensor]];
      for (const Access& earlier : of_storage) {
        if (earlier.write || access.write) depend(access.instruction, earlier.instruction);
      }
      of_storage.push_back(access);
    }
    for (size_t i = 0; i < uses.size(); ++i) {
      for (const Storage& later : plan_.storages) {
        if (!Replaces(plan_.storages[i], later)) continue;
        for (const Access& use : uses[i]) depend(later.first, use.instruction);
      }
    }
  }

  // Keeps only the edges that no path of other edges implies.
  void ReduceDependencies() {
    const size_t count = plan_.depends_on.size();
    std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
    for (size_t k = 0; k < count; ++k) {
      std::vector<int32_t>& list = plan_.depends_on[k];
      std::ranges::sort(list, std::greater<>());
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

  const Graph& graph_;
  const Program& program_;
  const int32_t gradients_from_, saved_from_;
  std::vector<int32_t> parent_;  // union-find over tensors that share memory; a root stands for all
  std::vector<Storage> tensors_;       // as if each had a place of its own
  std::vector<Access> accesses_;       // in the order of instructions
  std::vector<StorageId> storage_of_;  // per tensor; kNone: nothing is saved
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan PlanMemory(const Graph& graph, const Program& program) {
  return Planner(graph, program).Run();
}

}  // namespace engine::graph
