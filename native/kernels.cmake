# Every kernel is compiled once per instruction set, with that set's flags and in a namespace of its name; what decides
# at run time which one may run is compiled without any such flag.
set(KERNEL_SOURCES
    simd/kernels.cpp
    conv/convgemm.cpp
    conv/depthwise.cpp
    conv/direct.cpp
    conv/im2row.cpp
    conv/winograd2.cpp
    conv/winograd4.cpp
    conv/winograd6.cpp
    gemm/peak.cpp
    pool/pool.cpp
    transpose/blocked.cpp)
list(TRANSFORM KERNEL_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(KERNEL_INCLUDES ${CMAKE_CURRENT_LIST_DIR})

function(add_kernels_for target isa)
  add_library(kernels_${isa} OBJECT ${KERNEL_SOURCES})
  target_include_directories(kernels_${isa} PRIVATE ${KERNEL_INCLUDES})
  target_compile_definitions(kernels_${isa} PRIVATE BESTOF_TARGET=${isa})
  # -Wno-psabi: vectors are passed between inlined functions only. Contraction makes a * b + c one instruction.
  target_compile_options(kernels_${isa} PRIVATE -Wall -Wextra -Wno-psabi -O3 -ffp-contract=fast -fno-math-errno
                                                -fno-trapping-math -fno-exceptions -fno-rtti -fvisibility=hidden
                                                ${ARGN})
  target_link_libraries(kernels_${isa} PRIVATE OpenMP::OpenMP_CXX)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:kernels_${isa}>)
endfunction()

# Adds the kernels of every instruction set to `target`; further arguments are compile options.
function(add_kernels target)
  add_kernels_for(${target} baseline ${ARGN})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
    add_kernels_for(${target} avx2 ${ARGN} -mavx2 -mfma)
    add_kernels_for(${target} avx512 ${ARGN} -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
                    -mprefer-vector-width=512)
  endif()
endfunction()
