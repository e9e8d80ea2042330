// A primitive of oneDNN with what its calls need, made by the first of them.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <initializer_list>
#include <utility>
#include <vector>

namespace engine::cpu_ops {

template <typename Primitive>
class DnnlPass {
 public:
  using Desc = typename Primitive::primitive_desc;

  explicit DnnlPass(const Desc& desc) : desc_(desc), run_(desc) {}

  const Desc& desc() const noexcept { return desc_; }

  // `data`: the memory of each argument (DNNL_ARG_SRC, ...), or null for one that this primitive does
  // not have.
  void Run(const dnnl::stream& stream, std::initializer_list<std::pair<int, const void*>> data) {
    size_t i = 0;
    for (const auto& [argument, address] : data) {
      if (address == nullptr) continue;
      if (i == memory_.size()) {
        memory_.emplace_back(desc_.query_md(dnnl::query::exec_arg_md, argument),
                             stream.get_engine(), nullptr);
        arguments_.push_back({argument, memory_.back().get()});
      }
      memory_[i++].set_data_handle(const_cast<void*>(address));
    }
    // Not by run_.execute, which allocates.
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(run_.get(), stream.get(), static_cast<int>(arguments_.size()),
                               arguments_.data()),
        "could not execute a primitive");
  }

 private:
  Desc desc_;
  Primitive run_;
  std::vector<dnnl::memory> memory_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace engine::cpu_ops
