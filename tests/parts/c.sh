# The C interface: its own tests, and a C program compiled against the generated header, with 2 and 3 ranks.
c=$root/target/c
mkdir -p "$c"

c_program() { # name, compiler, flags...: compiles the example into $c/NAME
    local name=$1
    shift
    step "c: compile $name" "$@" "$root/examples/c/hello_allreduce.c" -I"$c/include" -o "$c/$name" \
        "${libraries[@]}"
}

step 'c: interface' cargo test --locked -p phalanx-c
if step 'c: library' cargo build --release --locked -p phalanx-c &&
    step 'c: header' cargo run --release --locked -p phalanx-c --bin phalanx-header -- "$c/include" && binary; then
    strict=(-Wall -Wextra -Wpedantic -Werror)
    libraries=(-L"$root/target/release" -Wl,-rpath,"$root/target/release" -lphalanx_c)
    c_program shared cc -std=c99 "${strict[@]}" &&
        for ranks in 2 3; do
            step "c: $ranks ranks" "$root/target/release/phalanx" run -np "$ranks" "$c/shared"
        done
    libraries=("$root/target/release/libphalanx_c.a" -lpthread -ldl -lm)
    c_program static cc -std=c99 "${strict[@]}" &&
        step 'c: 2 ranks, linked statically' "$root/target/release/phalanx" run -np 2 "$c/static"
    if command -v c++ >/dev/null; then
        step 'c: header from C++' c++ "${strict[@]}" -x c++ -fsyntax-only "$c/include/phalanx.h"
    fi
fi
