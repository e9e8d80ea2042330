// Loops that are compiled for several instruction sets; the loader takes the best one.
#pragma once

// In front of a function that is one loop. Sanitizers cannot instrument the choice, which is made
// before they are set up. The results must not depend on it: compile with -ffp-contract=off what
// multiplies and adds.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ENGINE_TARGET_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ENGINE_TARGET_CLONES
#endif
