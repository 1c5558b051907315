// The functions by which each file of bindings adds to the module, and the kernels in use.
#pragma once
#include <nanobind/nanobind.h>

#include "simd/isa.h"
#include "simd/kernels.h"

namespace bestof {

// The kernels of the instruction set in use.
const Kernels& kernels();

void bind_activation(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_attention_backward(nanobind::module_& m);
void bind_bernoulli(nanobind::module_& m);
void bind_channels(nanobind::module_& m);
void bind_conv(nanobind::module_& m);
void bind_excitation(nanobind::module_& m);
void bind_focal_loss(nanobind::module_& m);
void bind_frozen_norm(nanobind::module_& m);
void bind_group_norm(nanobind::module_& m);
void bind_inverted_residual(nanobind::module_& m);
void bind_layer_norm(nanobind::module_& m);
void bind_norm(nanobind::module_& m);
void bind_optim(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_pool(nanobind::module_& m);
void bind_product(nanobind::module_& m);
void bind_product_plan(nanobind::module_& m);
void bind_rotary(nanobind::module_& m);
void bind_softmax(nanobind::module_& m);
void bind_steps(nanobind::module_& m);
void bind_transpose(nanobind::module_& m);

}  // namespace bestof
