// What head and cross-entropy keep of each row of a chunk while the vocabulary passes; see linear_cross_entropy.cuh.
#pragma once
#include "../device/cuda.cuh"

// The rows of `state [5, R]`.
enum RowState {
    TARGET_LOGIT,
    MAXIMUM,    // of the logits so far, the target left out
    SUM,        // Σ exp(logit - maximum) of the same
    REFERENCE,  // what `e` refers to
    SHRINK,     // exp(reference before the last slab - reference), 1 unless it moved
};

// Rows of a block of `cross_entropy_rows`, which have one flag.
constexpr int ROWS_OF_FLAG = 32;
