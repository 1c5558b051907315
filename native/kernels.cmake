# Every kernel is compiled once per instruction set, with the flags of that set and in a namespace
# of its name. The code that decides at run time which one may run is compiled without such flags.
set(KERNEL_SOURCES activation/activation.cpp attention/backward.cpp attention/forward.cpp attention/forward_bf16.cpp
                   channels/channels.cpp conv/fingerprint.cpp conv/inverted_residual.cpp
                   conv/inverted_residual_bf16.cpp conv/outliers.cpp
                   excitation/excitation.cpp frozen_norm/frozen_norm.cpp gemm/peak.cpp loss/focal.cpp
                   norm/group_norm.cpp norm/layer_norm.cpp norm/norm.cpp optim/lamb.cpp pool/pool.cpp random/bernoulli.cpp
                   rotary/rotary.cpp
                   simd/kernels.cpp softmax/softmax.cpp transpose/blocked.cpp)
# What an instruction set with products of bfloat16 compiles for itself. The rest is another one's.
set(BFLOAT16_SOURCES attention/forward_bf16.cpp simd/kernels.cpp)
# What is compiled for vectors of bfloat16, and not for tile registers; and for these alone.
set(PAIR_SOURCES attention/backward_bf16.cpp conv/inverted_residual_bf16.cpp)
set(TILE_SOURCES attention/backward_tiled.cpp attention/forward_tiled.cpp)
# A row MACRO(name, namespace, ...) of FOLDER/algorithms.inc is compiled from FOLDER/NAME.cpp.
foreach(table conv:BESTOF_ALGORITHM gemm:BESTOF_PRODUCT)
  string(REPLACE ":" ";" table ${table})
  list(GET table 0 FOLDER)
  list(GET table 1 MACRO)
  set(ALGORITHMS ${CMAKE_CURRENT_LIST_DIR}/${FOLDER}/algorithms.inc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ALGORITHMS})
  file(STRINGS ${ALGORITHMS} ROWS REGEX "^${MACRO}")
  foreach(row IN LISTS ROWS)
    if(NOT row MATCHES "^${MACRO}\\(([a-z0-9_]+), BESTOF_(REST|TARGET),")
      message(FATAL_ERROR "${ALGORITHMS}: expected ${MACRO}(name, BESTOF_REST, ... "
                          "or ${MACRO}(name, BESTOF_TARGET, ...; got ${row}")
    endif()
    list(APPEND KERNEL_SOURCES ${FOLDER}/${CMAKE_MATCH_1}.cpp)
    if(CMAKE_MATCH_2 STREQUAL "TARGET")
      list(APPEND BFLOAT16_SOURCES ${FOLDER}/${CMAKE_MATCH_1}.cpp)
    endif()
  endforeach()
endforeach()
list(TRANSFORM KERNEL_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM BFLOAT16_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM PAIR_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM TILE_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(KERNEL_INCLUDES ${CMAKE_CURRENT_LIST_DIR})

# Compiles `sources` for one instruction set. If these are not all kernels, `rest` names the
# instruction set that has the others.
function(add_kernels_for target isa rest sources)
  add_library(kernels_${isa} OBJECT ${sources})
  target_include_directories(kernels_${isa} PRIVATE ${KERNEL_INCLUDES})
  target_compile_definitions(kernels_${isa} PRIVATE BESTOF_TARGET=${isa} BESTOF_REST=${rest})
  # -Wno-psabi: vectors are passed between inlined functions only. Contraction makes a * b + c one
  # instruction.
  target_compile_options(
    kernels_${isa}
    PRIVATE -Wall -Wextra -Wno-psabi -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
            -fno-exceptions -fno-rtti -fvisibility=hidden ${ARGN})
  target_link_libraries(kernels_${isa} PRIVATE OpenMP::OpenMP_CXX)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:kernels_${isa}>)
endfunction()

option(BESTOF_BASELINE_ONLY "Leave out all instruction sets that ask for a flag" OFF)
if(BESTOF_BASELINE_ONLY)
  add_compile_definitions(BESTOF_BASELINE_ONLY)
endif()

# GCC 11 and clang 12 are the first that know AMX.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-mamx-tile -mamx-bf16" COMPILER_KNOWS_AMX)
if(COMPILER_KNOWS_AMX AND NOT BESTOF_BASELINE_ONLY)
  add_compile_definitions(BESTOF_HAS_AMX)
endif()

# Adds the kernels of every instruction set to `target`; further arguments are compile options.
function(add_kernels target)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64" AND NOT BESTOF_BASELINE_ONLY)
    # NEON is every 64-bit Arm compiler's default, so it needs no flag.
    add_kernels_for(${target} neon neon "${KERNEL_SOURCES}" ${ARGN})
    return()
  endif()
  add_kernels_for(${target} baseline baseline "${KERNEL_SOURCES}" ${ARGN})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64" AND NOT BESTOF_BASELINE_ONLY)
    set(AVX512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
    add_kernels_for(${target} avx2 avx2 "${KERNEL_SOURCES}" ${ARGN} -mavx2 -mfma)
    add_kernels_for(${target} avx512 avx512 "${KERNEL_SOURCES}" ${ARGN} ${AVX512})
    add_kernels_for(${target} avx512_bf16 avx512 "${BFLOAT16_SOURCES};${PAIR_SOURCES}" ${ARGN}
                    ${AVX512} -mavx512bf16)
    if(COMPILER_KNOWS_AMX)
      add_kernels_for(${target} amx_bf16 avx512 "${BFLOAT16_SOURCES};${TILE_SOURCES}" ${ARGN}
                      ${AVX512} -mavx512bf16 -mamx-tile -mamx-bf16)
    endif()
  endif()
endfunction()

# The team of threads, for kernels that GCC compiles. Not for Arm, whose processors have no
# instruction that pauses for as long as a thread should spin.
function(add_team target)
  set(TEAM ${KERNEL_INCLUDES}/team/team.cpp)
  target_sources(${target} PRIVATE ${TEAM})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_NAME STREQUAL "Linux"
     AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
    set_property(SOURCE ${TEAM} APPEND PROPERTY COMPILE_DEFINITIONS BESTOF_TEAM)
    # All that GCC calls in the kernels: tests/unit/kernels/test_steps_on_a_team.py.
    foreach(name GOMP_parallel GOMP_barrier GOMP_single_start GOMP_loop_nonmonotonic_dynamic_start
                 GOMP_loop_nonmonotonic_dynamic_next GOMP_loop_end GOMP_loop_end_nowait
                 omp_get_num_threads omp_get_thread_num)
      target_link_options(${target} PRIVATE "LINKER:--wrap=${name}")
    endforeach()
  endif()
endfunction()
