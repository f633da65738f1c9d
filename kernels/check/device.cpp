// Checks and times the kernels on a device: the stand-in of the CPU is the measure of their bits, a copy that of their
// speed.
//
//     check IMAGE          all of it; IMAGE is a fatbin, a cubin or PTX
//     check IMAGE bits     without the timings
//
// Needs no toolkit. Ends with 0 if every bit is right and no bar is missed, with 1 if not, with 2 if it could not be
// checked.
#include <ucontext.h>

#include "../shim/cpu.cpp"

#include "bits.hpp"
#include "peers.hpp"
#include "timing.hpp"

int main(int count, char **words) {
    if (count < 2) give_up("give the compiled kernels: check IMAGE [bits]");
    const std::string mode = count > 2 ? words[2] : "all";
    // Nothing here may hang for ever, whatever the device does.
    alarm(220);
    Driver driver;
    driver.load(words[1]);
    if (mode == "peer" && count == 5) return run_peer(driver, (unsigned)atoi(words[3]), atoi(words[4]));
    char name[128] = "";
    int version = 0;
    driver.call("cuDeviceGetName", (char *)name, (int)sizeof name, driver.device);
    driver.call("cuDriverGetVersion", &version);
    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
    printf("%s, sm_%d%d, driver for CUDA %d.%d\n\n", name, driver.attribute(75), driver.attribute(76), version / 1000,
           version % 1000 / 10);
    bool good = true;
    const auto row = [&](const char *what, const Tally &tally) {
        printf("%-42s %8llu cases  %s\n", what, tally.cases, tally.wrong ? "WRONG" : "right");
        if (tally.wrong) printf("    %llu are wrong, first %s\n", tally.wrong, tally.first.c_str());
        fflush(stdout);
        good = good && !tally.wrong && tally.cases;
    };
    row("reductions", check_reductions(driver));
    row("scaling and casts", check_scales_and_casts(driver));
    row("many tensors to one buffer and back", check_packing(driver));
    row("Adasum, 8 bits, counting", check_adasum_and_codes(driver));
    row("giving up while a kernel waits", check_abort(driver));
    row("allreduce between two processes, by IPC", check_processes(words[0], words[1]));
    if (mode == "all") {
        const char *part = getenv("PHALANX_CHECK_SCALE");
        printf("\n%-42s %10s %10s %8s\n", "kernel", "GB/s", "copy GB/s", "part");
        for (const Timing &timing : time_kernels(driver, part ? std::max(1, atoi(part)) : 1)) {
            printf("%-42s %10.1f %10.1f %7.0f%%%s\n", timing.name.c_str(), timing.gigabytes, timing.copy,
                   100 * timing.gigabytes / timing.copy, timing.missed() ? "  below the bar of 90 %" : "");
            good = good && !timing.missed();
        }
    }
    printf("\n%s\n", good ? "all is as it should be" : "NOT all is as it should be");
    return good ? 0 : 1;
}
