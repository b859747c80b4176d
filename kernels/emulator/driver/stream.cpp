// Streams and events. Work on a stream is done later and, between streams, in an order that no program may rely on: the next piece
// comes from a stream that chance picks among those that wait for nothing. So memory that is freed or overwritten too early, and
// streams that lack an event between them, show as wrong numbers or as faults, as on a real device, and again with the same seed.
//
// `EMULATED_CUDA_SEED` is the seed (1); 0 does all work when it is put on its stream. The legacy stream does its work at once, after
// that of the streams that did not ask to be independent of it.
#include "stream.hpp"
#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <unistd.h>

struct Recording {
    bool done = false;
    std::chrono::steady_clock::time_point time;
};

struct Piece {
    driver::Work work;                 // empty: waits alone
    std::shared_ptr<Recording> needs;  // nothing, or what has to be done before
    std::function<bool()> goes_on = nullptr;  // nothing, or what another library does: true when it is done
    bool is_ready() const { return !needs || needs->done; }
};

struct Stream {
    unsigned flags;
    std::deque<Piece> pieces;
};

struct Event {
    std::shared_ptr<Recording> last;
};

static std::set<Stream*> streams;
static constexpr unsigned NON_BLOCKING = 1;
static constexpr size_t MOST_WAITING = 512;  // pieces on a stream, so that a program that never waits needs no more memory

static unsigned long seed() {
    static const unsigned long chosen = [] {
        const char* text = std::getenv("EMULATED_CUDA_SEED");
        return text ? std::strtoul(text, nullptr, 10) : 1ul;
    }();
    return chosen;
}

static size_t chance(size_t choices) {
    static unsigned long long state = seed() * 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return size_t(state % choices);
}

// Null, and the two addresses by which a program names the legacy stream and that of its thread.
static bool is_legacy(void* stream) { return uintptr_t(stream) <= 2; }

// Does one piece of a stream that waits for nothing. False when there is none. What another library does may wait for another process.
static bool step() {
    std::vector<Stream*> ready;
    for (Stream* stream : streams)
        if (!stream->pieces.empty() && stream->pieces.front().is_ready()) ready.push_back(stream);
    if (ready.empty()) return false;
    Stream* stream = ready[chance(ready.size())];
    if (stream->pieces.front().goes_on && driver::state() == SUCCESS && !stream->pieces.front().goes_on()) {
        usleep(50);
        return true;
    }
    const Piece piece = std::move(stream->pieces.front());
    stream->pieces.pop_front();
    if (piece.work && driver::state() == SUCCESS) piece.work();
    return true;
}

template <class Done>
static Result go_on_until(Done done) {
    while (!done())
        if (!step()) {
            driver::fail("emulated driver: streams wait for events that no stream will record\n");
            break;
        }
    return driver::state();
}

namespace driver {

Result drain_all() {
    return go_on_until([] {
        for (const Stream* stream : streams)
            if (!stream->pieces.empty()) return false;
        return true;
    });
}

Result drain_blocking() {
    return go_on_until([] {
        for (const Stream* stream : streams)
            if (!(stream->flags & NON_BLOCKING) && !stream->pieces.empty()) return false;
        return true;
    });
}

Result drain(void* stream) {
    if (is_legacy(stream)) return drain_blocking();
    return go_on_until([&] { return static_cast<Stream*>(stream)->pieces.empty(); });
}

Result enqueue(void* on, Work work) {
    if (is_legacy(on)) {
        const Result before = drain_blocking();
        return before ? before : work();
    }
    auto* stream = static_cast<Stream*>(on);
    if (!streams.count(stream)) return INVALID_HANDLE;
    if (seed() == 0) return work();
    stream->pieces.push_back({std::move(work), nullptr});
    for (size_t some = stream->pieces.size() > MOST_WAITING ? MOST_WAITING : chance(4) == 0 ? chance(8) : 0; some > 0 && step(); --some) {
    }
    return state();
}

}  // namespace driver

API Result cuStreamCreate(Stream** stream, unsigned flags) {
    ON_DEVICE;
    *stream = new Stream{flags, {}};
    streams.insert(*stream);
    return SUCCESS;
}
API Result cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

API Result cuStreamDestroy_v2(Stream* stream) {
    ON_DEVICE;
    const Result result = driver::drain(stream);
    streams.erase(stream);
    delete stream;
    return result;
}

API Result cuStreamSynchronize(Stream* stream) {
    ON_DEVICE;
    return driver::drain(stream);
}

API Result cuStreamQuery(Stream* stream) {
    ON_DEVICE;
    if (is_legacy(stream)) return driver::drain_blocking();
    step();
    return driver::state() ? driver::state() : stream->pieces.empty() ? SUCCESS : NOT_READY;
}

API Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    ON_DEVICE;
    if (!event) return INVALID_HANDLE;
    if (!event->last || event->last->done) return SUCCESS;
    if (is_legacy(stream)) return go_on_until([&] { return event->last->done; });
    stream->pieces.push_back({nullptr, event->last});
    return SUCCESS;
}

API Result cuLaunchHostFunc(Stream* stream, void (*call)(void*), void* with) {
    {
        ON_DEVICE;
        // The function may take a lock whose holder waits for the device, so it is not called from within another call.
        if (const Result result = driver::drain(stream)) return result;
    }
    call(with);
    return SUCCESS;
}

API Result cuEventCreate(Event** event, unsigned) {
    ON_DEVICE;
    *event = new Event{};
    return SUCCESS;
}

API Result cuEventDestroy_v2(Event* event) {
    delete event;
    return SUCCESS;
}

API Result cuEventRecord(Event* event, Stream* stream) {
    ON_DEVICE;
    if (!event) return INVALID_HANDLE;
    const auto recording = event->last = std::make_shared<Recording>();
    return driver::enqueue(stream, [recording] {
        recording->time = std::chrono::steady_clock::now();
        recording->done = true;
        return SUCCESS;
    });
}

API Result cuEventSynchronize(Event* event) {
    ON_DEVICE;
    if (!event) return INVALID_HANDLE;
    const auto last = event->last;
    return last ? go_on_until([&] { return last->done; }) : SUCCESS;
}

API Result cuEventQuery(Event* event) {
    ON_DEVICE;
    if (!event) return INVALID_HANDLE;
    step();
    return driver::state() ? driver::state() : !event->last || event->last->done ? SUCCESS : NOT_READY;
}

API Result cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
    ON_DEVICE;
    if (!start || !end || !start->last || !end->last) return INVALID_HANDLE;
    if (!start->last->done || !end->last->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
    return SUCCESS;
}
API Result cuEventElapsedTime(float* milliseconds, Event* start, Event* end) { return cuEventElapsedTime_v2(milliseconds, start, end); }

API Result cuCtxSynchronize() {
    ON_DEVICE;
    return driver::drain_all();
}

// For other emulated libraries, which are not NVIDIA's interface: does this on a stream, and again until it says that it is done.
API Result emulatedEnqueue(void* on, int (*go_on)(void*), void* with) {
    ON_DEVICE;
    if (is_legacy(on) || seed() == 0) {
        const Result before = driver::drain(on);
        while (!before && !go_on(with)) usleep(50);
        return before;
    }
    auto* stream = static_cast<Stream*>(on);
    if (!streams.count(stream)) return INVALID_HANDLE;
    stream->pieces.push_back({nullptr, nullptr, [=] { return go_on(with) != 0; }});
    return SUCCESS;
}

// Recording launches to play them again is not emulated.
API Result cuStreamBeginCapture_v2(Stream*, int) { return NOT_SUPPORTED; }
API Result cuStreamEndCapture(Stream*, void**) { return NOT_SUPPORTED; }
API Result cuStreamIsCapturing(Stream*, int* status) {
    *status = 0;
    return SUCCESS;
}
API Result cuGraphDestroy(void*) { return NOT_SUPPORTED; }
API Result cuGraphExecDestroy(void*) { return NOT_SUPPORTED; }
API Result cuGraphGetNodes(void*, void*, size_t*) { return NOT_SUPPORTED; }
API Result cuGraphInstantiateWithFlags(void**, void*, unsigned long long) { return NOT_SUPPORTED; }
API Result cuGraphLaunch(void*, Stream*) { return NOT_SUPPORTED; }
API Result cuGraphNodeGetType(void*, int*) { return NOT_SUPPORTED; }
API Result cuGraphUpload(void*, Stream*) { return NOT_SUPPORTED; }
