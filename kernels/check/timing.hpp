// How fast the kernels are, as parts of what a copy on the same device moves in the same run.
#pragma once
#include "bits.hpp"

#include <algorithm>
#include <functional>

static const size_t TIMED_BYTES = (size_t)256 << 20;
static const double BAR = 0.90;

struct Timing {
    std::string name;
    double gigabytes, copy;
    // Whether the bar holds for it.
    bool counts;
    bool missed() const { return counts && gigabytes < BAR * copy; }
};

class Stopwatch {
  public:
    explicit Stopwatch(Driver &driver) : driver(driver) {
        driver.call("cuEventCreate", &begin, 0u);
        driver.call("cuEventCreate", &end, 0u);
    }

    double seconds(const std::function<void()> &work) {
        driver.call("cuEventRecord", begin, driver.stream);
        for (int turn = 0; turn < TURNS; ++turn) work();
        driver.call("cuEventRecord", end, driver.stream);
        driver.call("cuEventSynchronize", end);
        float milliseconds = 0;
        driver.call("cuEventElapsedTime", &milliseconds, begin, end);
        return milliseconds / 1e3 / TURNS;
    }

  private:
    static const int TURNS = 5;
    Driver &driver;
    void *begin = nullptr, *end = nullptr;
};

static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// `scale` divides all sizes, for a stand-in that is no device.
static std::vector<Timing> time_kernels(Driver &driver, size_t scale) {
    const size_t bytes = TIMED_BYTES / scale;
    // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT; eight blocks of 256 threads fill each.
    const unsigned blocks = (unsigned)driver.attribute(16) * 8;
    Stopwatch watch(driver);
    Address buffers[9];
    for (Address &buffer : buffers) {
        buffer = driver.allocate(bytes + 64);
        driver.call("cuMemsetD8_v2", buffer, (unsigned char)0, bytes + 64);
    }
    const Address table = driver.allocate(sizeof(Piece) * 64), room = driver.allocate(bytes / 64 + 65536);
    // Pointers as they are among parameters.
    const auto at = [&](size_t which) { return (void *)buffers[which]; };
    std::vector<Timing> timings;
    const auto time = [&](const std::string &name, double moved, size_t part, bool counts, const std::function<void()> &work) {
        work();
        driver.wait();
        std::vector<double> own, copy;
        // In turns, so that whatever changes the device's pace changes both.
        for (int turn = 0; turn < 5; ++turn) {
            copy.push_back(watch.seconds([&] {
                driver.call("cuMemcpyDtoDAsync_v2", buffers[0], buffers[1], part, driver.stream);
            }));
            own.push_back(watch.seconds(work));
        }
        timings.push_back({name, moved / median(own) / 1e9, 2.0 * part / median(copy) / 1e9, counts});
    };
    for (const char *type : {"f32", "bf16", "f16", "f64", "i8", "i32"}) {
        const std::string digits = std::string(type).substr(std::string(type).find_first_of("1368"));
        const size_t size = std::stoul(digits) / 8;
        for (unsigned used : {2u, 4u, 8u}) {
            for (size_t part : {bytes / 4, bytes}) {
                if (used != 2 && (size != 4 || type[0] != 'f')) continue;
                ReduceParameters p = {};
                p.target = at(0), p.count = part / size, p.finish = {1, 1.0}, p.sources_used = used;
                for (unsigned source = 0; source < used; ++source) p.sources[source] = at(source + 1);
                const std::string name = std::string("phx_reduce_sum_") + type;
                time(name + " of " + std::to_string(used) + ", " + std::to_string(part >> 20) + " MiB",
                     (used + 1.0) * part, part, true, [&, p] { driver.launch(name, p, blocks); });
            }
        }
    }
    ReduceParameters skewed = {};
    skewed.target = at(0), skewed.sources[0] = at(1), skewed.sources[1] = (char *)at(2) + 4;
    skewed.count = bytes / 4, skewed.finish = {1, 1.0}, skewed.sources_used = 2;
    time("phx_reduce_sum_f32, not alike", 3.0 * bytes, bytes, false,
         [&] { driver.launch("phx_reduce_sum_f32", skewed, blocks); });
    const ScaleParameters scaled = {at(0), at(1), bytes / 4, {3, 0.5}};
    time("phx_scale_f32", 2.0 * bytes, bytes, false, [&] { driver.launch("phx_scale_f32", scaled, blocks); });
    for (const char *pair : {"f32_bf16", "f32_f16", "f32_f8_e4m3"}) {
        const CastParameters cast = {at(0), at(1), bytes / 4};
        const double moved = pair[5] == '8' ? 1.25 : 1.5;
        time(std::string("phx_cast_") + pair, moved * bytes, bytes, false,
             [&] { driver.launch(std::string("phx_cast_") + pair, cast, blocks); });
    }
    std::vector<Piece> pieces;
    for (size_t piece = 0; piece < 64; ++piece) {
        pieces.push_back({(char *)at(1) + piece * (bytes / 64), piece * (bytes / 64), bytes / 64});
    }
    driver.put(table, pieces.data(), sizeof(Piece) * pieces.size());
    const PackParameters pack = {at(0), (const Piece *)table, 64};
    time("phx_gather_pieces, 64", 2.0 * bytes, bytes, false, [&] { driver.launch("phx_gather_pieces", pack, blocks); });
    const AdasumParameters adasum = {at(0), at(1), at(2), bytes / 4, (Products *)room};
    time("phx_adasum_products_f32", 2.0 * bytes, bytes, false,
         [&] { driver.launch("phx_adasum_products_f32", adasum, blocks); });
    time("phx_adasum_combine_f32", 3.0 * bytes, bytes, false,
         [&] { driver.launch("phx_adasum_combine_f32", adasum, blocks); });
    const QuantizeParameters coded = {(u8 *)at(0), (RunScale *)room, at(1), (float *)at(2), bytes / 4};
    time("phx_quantize_f32", 3.25 * bytes, bytes, false, [&] { driver.launch("phx_quantize_f32", coded, blocks); });
    const DequantizeParameters decoded = {at(1), (const u8 *)at(0), (const RunScale *)room, bytes / 4, 0};
    time("phx_dequantize_f32", 1.25 * bytes, bytes, false, [&] { driver.launch("phx_dequantize_f32", decoded, blocks); });
    const CheckParameters checked = {at(0), at(1), bytes / 4, (u64 *)room};
    time("phx_count_wrong_4", 2.0 * bytes, bytes, false, [&] { driver.launch("phx_count_wrong_4", checked, blocks); });
    for (Address buffer : buffers) driver.call("cuMemFree_v2", buffer);
    return timings;
}
