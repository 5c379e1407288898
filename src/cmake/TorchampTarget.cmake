# Language level and warnings of every target of this project.
function(torchamp_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20) # torch's headers ask for C++20 from 2.15 on
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
  # No fused multiply-add behind our back: results must not depend on the processor.
  target_compile_options(
    ${target}
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall
            -Wextra
            -Wpedantic
            -Wconversion
            -ffp-contract=off>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TORCHAMP_WERROR}>>:-Werror>
            $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TORCHAMP_WERROR}>>:-Werror=all-warnings>)
endfunction()
