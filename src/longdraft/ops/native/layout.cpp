// The interface as the compiler laid it out. interface.py compares this table with interface.h before it uses a build, so
// that a build of other sources is refused.
#include <cstddef>
#include <type_traits>

#include "interface.h"

// One octal digit for a type: interface.py has the same.
template <typename T>
constexpr int64_t kind() {
    if constexpr (std::is_void_v<T>)
        return 0;
    else if constexpr (std::is_pointer_v<T>)
        return 1;
    else if constexpr (std::is_class_v<T>)
        return 2;
    else
        return (std::is_floating_point_v<T> ? 5 : 3) + (sizeof(T) == 8);
}

// A 1, the result and the arguments, a digit each.
template <typename Result, typename... Arguments>
constexpr int64_t kinds(Result (*)(Arguments...)) {
    int64_t digits = 8 + kind<Result>();
    ((digits = digits * 8 + kind<Arguments>()), ...);
    return digits;
}

#define STRUCT(S) {#S, sizeof(S), 2}
#define FIELD(S, F) {#S "." #F, offsetof(S, F), kind<decltype(S::F)>()}
#define VALUE(V) {#V, V, kind<decltype(V)>()}
#define FUNCTION(F) {#F, 0, kinds(static_cast<decltype(F)*>(nullptr))}

static constexpr Entry table[] = {
#include "layout.inc"  // a row for everything in interface.h, written by setup.py
    {nullptr, 0, 0},
};

const Entry* longdraft_interface() { return table; }
