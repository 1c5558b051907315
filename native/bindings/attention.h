// Attention by an AttentionPlan, for callers without Python.
#pragma once

namespace bestof {

// See CCalls::attend.
bool attend_by_plan(const void* plan, const float* q, const float* k, const float* v,
                    const float* mask, float* out, float* logsumexp);

}  // namespace bestof
