// Every kernel on the device and on the CPU, over the same bytes: the results must be the same, to the last bit.
#pragma once
#include "driver.hpp"

#include <random>

// What came out, for the table.
struct Tally {
    unsigned long long cases = 0, wrong = 0;
    std::string first;

    void add(bool same, const std::string &words) {
        ++cases;
        if (same) return;
        if (wrong++ == 0) first = words;
    }
};

template <typename Parameters> static void on_cpu(const std::string &name, const Parameters &parameters, unsigned blocks) {
    const auto kernel = (void (*)(const Parameters *, unsigned, unsigned))dlsym(RTLD_DEFAULT, name.c_str());
    if (!kernel) give_up("the stand-in has no " + name);
    kernel(&parameters, blocks, 256);
}

// The same bytes in memory of the device and of the host; both begin at a multiple of sixteen.
class Twin {
  public:
    Twin(Driver &driver, size_t bytes) : here(bytes + 64), driver(driver), there(driver.allocate(bytes + 64)) {}
    Twin(const Twin &) = delete;
    ~Twin() { driver.call("cuMemFree_v2", there); }

    // Random bits; for floats of `tame` bytes, numbers below two alone.
    void fill(std::mt19937_64 &random, size_t tame = 0) {
        for (size_t at = 0; at + 8 <= here.size(); at += 8) {
            const unsigned long long bits = random();
            memcpy(&here[at], &bits, 8);
        }
        for (size_t at = tame - 1; tame && at < here.size(); at += tame) here[at] &= (char)0xbf;
        send();
    }
    void clear() {
        memset(here.data(), 0, here.size());
        send();
    }
    void send() { driver.put(there, here.data(), here.size()); }

    bool same() {
        std::vector<char> result(here.size());
        driver.get(result.data(), there, result.size());
        return result == here;
    }

    template <typename T = void> T *at(bool device, size_t offset = 0) {
        return (T *)((device ? (char *)there : here.data()) + offset);
    }

    std::vector<char> here;

  private:
    Driver &driver;
    Address there;
};

struct Type {
    const char *name;
    size_t size;
};
static const Type TYPES[] = {{"f16", 2}, {"bf16", 2}, {"f32", 4}, {"f64", 8}, {"f8_e4m3", 1}, {"f8_e5m2", 1}, {"i8", 1},
                             {"u8", 1},  {"i16", 2},  {"i32", 4}, {"u32", 4}, {"i64", 8},     {"u64", 8},     {"bool", 1}};
static const char *const OPERATIONS[] = {"sum",    "product", "min",     "max",         "bit_and",
                                         "bit_or", "bit_xor", "logical_and", "logical_or"};
static const size_t COUNTS[] = {0, 1, 7, 33, 1025, 20011};
static const size_t MOST = 20011;
static const Finish FINISHES[] = {{1, 1.0}, {3, 1.0}, {4, 0.7}};

// One launch on either side, with the parameters that `make` gives for the device (true) and for the host.
template <typename Make> static void both(Driver &driver, const std::string &name, Make make) {
    driver.launch(name, make(true), 5);
    on_cpu(name, make(false), 5);
    driver.wait();
}

static bool defined(const Type &type, const std::string &operation) {
    const std::string name = type.name;
    const bool bits = operation.compare(0, 4, "bit_") == 0;
    if (name == "bool") return bits;
    return !bits || (name[0] != 'f' && name[0] != 'b');
}

static Tally check_reductions(Driver &driver) {
    Tally tally;
    std::mt19937_64 random(1);
    const size_t bytes = MOST * 8 + 64;
    Twin target(driver, bytes), one(driver, bytes), two(driver, bytes), three(driver, bytes);
    Twin *const sources[] = {&one, &two, &three};
    for (const Type &type : TYPES) {
        for (const char *operation : OPERATIONS) {
            if (!defined(type, operation)) continue;
            const std::string name = std::string("phx_reduce_") + operation + "_" + type.name;
            unsigned turn = 0;
            for (size_t count : COUNTS) {
                for (Finish finish : FINISHES) {
                    for (unsigned used : {2u, 3u, 16u}) {
                        // Alike, by an element, and across elements' own size; tame numbers and any bits.
                        const size_t lead = turn % 3 == 0 ? 0 : turn % 3 == 1 ? type.size : 1;
                        const size_t other = turn % 2 ? lead : 0;
                        for (Twin *source : sources) source->fill(random, turn % 4 < 2 ? type.size : 0);
                        target.fill(random);
                        ++turn;
                        both(driver, name, [&](bool device) {
                            ReduceParameters p = {};
                            p.target = target.at(device, lead);
                            for (unsigned source = 0; source < used; ++source) {
                                p.sources[source] = sources[source % 3]->at(device, source % 2 ? other : lead);
                            }
                            p.count = count, p.finish = finish, p.sources_used = used;
                            return p;
                        });
                        tally.add(target.same(), name + " of " + std::to_string(count) + ", " + std::to_string(used) +
                                                     " sources, divisor " + std::to_string(finish.divisor));
                    }
                }
            }
        }
    }
    return tally;
}

static Tally check_scales_and_casts(Driver &driver) {
    Tally tally;
    std::mt19937_64 random(2);
    Twin target(driver, MOST * 8 + 64), source(driver, MOST * 8 + 64);
    for (const Type &type : TYPES) {
        for (size_t count : COUNTS) {
            for (size_t lead : {(size_t)0, type.size, (size_t)1}) {
                for (Finish finish : FINISHES) {
                    source.fill(random), target.fill(random);
                    const std::string name = std::string("phx_scale_") + type.name;
                    both(driver, name, [&](bool device) {
                        return ScaleParameters{target.at(device), source.at(device, lead), count, finish};
                    });
                    tally.add(target.same(), name + " of " + std::to_string(count));
                }
            }
        }
    }
    for (const char *pair : {"f16_f32", "bf16_f32", "f8_e4m3_f32", "f8_e5m2_f32", "f32_f16", "f32_bf16", "f32_f8_e4m3",
                             "f32_f8_e5m2"}) {
        for (size_t count : COUNTS) {
            for (size_t lead : {0, 1, 4}) {
                source.fill(random, count % 2 ? 4 : 0), target.fill(random);
                const std::string name = std::string("phx_cast_") + pair;
                both(driver, name, [&](bool device) {
                    return CastParameters{target.at(device), source.at(device, lead), count};
                });
                tally.add(target.same(), name + " of " + std::to_string(count));
            }
        }
    }
    return tally;
}

static Tally check_packing(Driver &driver) {
    Tally tally;
    std::mt19937_64 random(3);
    const size_t lengths[] = {0, 1, 17, 4096, 70001, 3};
    Twin buffer(driver, 100000), tensors(driver, 200000), table(driver, sizeof(Piece) * 6);
    for (const char *name : {"phx_gather_pieces", "phx_scatter_pieces"}) {
        buffer.fill(random), tensors.fill(random);
        both(driver, name, [&](bool device) {
            size_t offset = 0, place = 0;
            std::vector<Piece> pieces;
            for (size_t length : lengths) {
                pieces.push_back({tensors.at(device, place), offset, length});
                offset += (length + 15) / 16 * 16, place += length + 13;
            }
            memcpy(table.here.data(), pieces.data(), sizeof(Piece) * pieces.size());
            if (device) table.send();
            return PackParameters{buffer.at(device), table.at<Piece>(device), 6};
        });
        tally.add(buffer.same() && tensors.same(), name);
    }
    return tally;
}

static Tally check_adasum_and_codes(Driver &driver) {
    Tally tally;
    std::mt19937_64 random(4);
    const size_t bytes = MOST * 8 + 64;
    Twin target(driver, bytes), left(driver, bytes), right(driver, bytes), room(driver, 65536);
    for (const Type &type : {TYPES[0], TYPES[1], TYPES[2], TYPES[3]}) {
        for (size_t count : COUNTS) {
            left.fill(random, type.size), right.fill(random, type.size), target.fill(random), room.clear();
            const auto adasum = [&](bool device) {
                return AdasumParameters{target.at(device), left.at(device), right.at(device), count,
                                        room.at<Products>(device)};
            };
            for (const char *part : {"products_", "combine_"}) {
                both(driver, std::string("phx_adasum_") + part + type.name, adasum);
            }
            tally.add(target.same() && room.same(), std::string("phx_adasum of ") + type.name);
            if (type.size == 8) continue;
            // Errors are kept in `right`, codes in `target`.
            right.clear(), target.fill(random), room.clear();
            for (unsigned step = 0; step < 3; ++step) {
                left.fill(random, step < 2 ? type.size : 0);
                both(driver, std::string("phx_quantize_") + type.name, [&](bool device) {
                    return QuantizeParameters{target.at<u8>(device), room.at<RunScale>(device), left.at(device),
                                              right.at<float>(device), count};
                });
                tally.add(target.same() && room.same() && right.same(), std::string("phx_quantize_") + type.name);
                both(driver, std::string("phx_dequantize_") + type.name, [&](bool device) {
                    return DequantizeParameters{left.at(device), target.at<u8>(device), room.at<RunScale>(device), count,
                                                step % 2};
                });
                tally.add(left.same(), std::string("phx_dequantize_") + type.name);
            }
        }
    }
    for (const char *size : {"1", "2", "4", "8"}) {
        left.fill(random);
        right.here = left.here, right.here[0] ^= 1, right.here[20000] ^= 1, right.send(), room.clear();
        both(driver, std::string("phx_count_wrong_") + size, [&](bool device) {
            return CheckParameters{left.at(device), right.at(device), 20000 / (u64)atoi(size) + 1, room.at<u64>(device)};
        });
        u64 wrong = 0;
        for (unsigned block = 0; block < 5; ++block) wrong += room.at<u64>(false)[block];
        tally.add(room.same() && wrong == 2, std::string("phx_count_wrong_") + size);
    }
    return tally;
}
