// lion.cc in C11: the tables of functions that cross the boundary, written by hand.
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

typedef struct Lion {
  const EngineOptimizerFunctions* functions;  // what crosses: a pointer to this
  float beta1, beta2, weight_decay;
} Lion;

static int Is(EngineTextView text, const char* word) {
  return text.length == strlen(word) && memcmp(text.text, word, text.length) == 0;
}

static void Destroy(void* self) { free(self); }

static void* Query(void* self, EngineTextView id, uint64_t layout) {
  if (!Is(id, ENGINE_OPTIMIZER_ID)) return NULL;
  return layout == 0 || layout == ENGINE_OPTIMIZER_LAYOUT ? self : NULL;
}

static void Traits(void* self, EngineOptimizerTraits* out) {
  (void)self;
  EngineOptimizerTraits traits = {.struct_size = sizeof traits, .gate = ENGINE_UPDATE_GATE_SPAN,
                                  .state_count = 1, .state_names = {"momentum"},
                                  .state_format_version = 1};
  if (out->struct_size < traits.struct_size) traits.struct_size = out->struct_size;
  memcpy(out, &traits, traits.struct_size);
}

static EngineStatusValue Update(void* self, const EngineUpdateCall* call) {
  const Lion* const lion = self;
  float* const momentum = call->states[0];
  const float decay = lion->weight_decay * call->weight_decay_scale;
  for (int64_t i = 0; i < call->count; ++i) {
    const float gradient = call->gradient[i] * call->gradient_scale;
    const float mixed = lion->beta1 * momentum[i] + (1 - lion->beta1) * gradient;
    const float sign = (float)((mixed > 0) - (mixed < 0));
    call->value[i] -= call->learning_rate * (sign + decay * call->value[i]);
    momentum[i] = lion->beta2 * momentum[i] + (1 - lion->beta2) * gradient;
  }
  return (EngineStatusValue){0, -1, NULL};
}

static const EngineOptimizerFunctions kFunctions = {
    {{sizeof kFunctions, ENGINE_OPTIMIZER_LAYOUT, NULL, 0}, Destroy, Query}, Traits, Update};

static float Number(const EngineArray* options, const char* name) {
  for (uint32_t i = 0; i < options->count; ++i) {
    const EngineOptionValue* const option =
        (const EngineOptionValue*)((const char*)options->elements + i * options->stride);
    if (Is(option->name, name)) return (float)option->number;
  }
  return 0;  // not reached: the engine gives a value to every option that is published
}

static EngineStatusValue Create(EngineHost* host, const EngineArray* options, EngineObject** out) {
  (void)host;
  static EngineStatusMessage no_memory = {sizeof no_memory, "no memory", NULL};
  Lion* const lion = malloc(sizeof *lion);
  if (lion == NULL) return (EngineStatusValue){ENGINE_STATUS_CODE_RESOURCE_EXHAUSTED, -1, &no_memory};
  *lion = (Lion){&kFunctions, Number(options, "beta1"), Number(options, "beta2"),
                 Number(options, "weight_decay")};
  *out = (EngineObject*)lion;
  return (EngineStatusValue){0, -1, NULL};
}

#define FRACTION(word, value, text)                                                           \
  {.name = word, .type = ENGINE_OPTION_TYPE_FLOAT, .default_value = value, .min = 0, .max = 1, \
   .doc = text}

extern const struct LionDescriptor {
  EnginePluginHeader header;
  EngineOptionSpec options[3];
} ENGINE_PLUGIN_SYMBOL;

__attribute__((visibility("default"))) const struct LionDescriptor ENGINE_PLUGIN_SYMBOL = {
    {.magic = ENGINE_PLUGIN_MAGIC, .abi_major = ENGINE_ABI_MAJOR, .abi_minor = ENGINE_ABI_MINOR,
     .min_host_minor = ENGINE_ABI_MINOR, .size_bytes = sizeof(struct LionDescriptor),
     .kind = ENGINE_PLUGIN_KIND_OPTIMIZER, .option_count = 3,
     .option_offset = offsetof(struct LionDescriptor, options),
     .option_stride = sizeof(EngineOptionSpec), .host = {{ENGINE_HOST_LAYOUT}},
     .role = {{ENGINE_OPTIMIZER_LAYOUT}}, .options = {{ENGINE_OPTIONS_LAYOUT}}, .name = "lion_c",
     .version = "1.0.0", .device = "any", .doc = "Lion in C", .compiler = "C " __VERSION__,
     .create = Create},
    {FRACTION("beta1", "0.9", "weight of the momentum in the sign"),
     FRACTION("beta2", "0.99", "decay of the momentum"),
     FRACTION("weight_decay", "0", "decoupled, times the learning rate")}};
