// Streams and events. What is put on a stream has been done when the call returns; an event is the time of its recording.
#include "driver.hpp"
#include <chrono>

struct Stream {
    unsigned flags;
};

struct Event {
    bool recorded;
    std::chrono::steady_clock::time_point time;
};

API Result cuStreamCreate(Stream** stream, unsigned flags) {
    ON_DEVICE;
    *stream = new Stream{flags};
    return SUCCESS;
}
API Result cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

API Result cuStreamDestroy_v2(Stream* stream) {
    delete stream;
    return SUCCESS;
}

API Result cuStreamSynchronize(Stream*) {
    ON_DEVICE;
    return SUCCESS;
}
API Result cuStreamQuery(Stream* stream) { return cuStreamSynchronize(stream); }
API Result cuStreamWaitEvent(Stream* stream, Event*, unsigned) { return cuStreamSynchronize(stream); }

API Result cuLaunchHostFunc(Stream*, void (*call)(void*), void* with) {
    {
        ON_DEVICE;
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

API Result cuEventRecord(Event* event, Stream*) {
    ON_DEVICE;
    if (!event) return INVALID_HANDLE;
    *event = {true, std::chrono::steady_clock::now()};
    return SUCCESS;
}

API Result cuEventSynchronize(Event*) {
    ON_DEVICE;
    return SUCCESS;
}
API Result cuEventQuery(Event* event) { return cuEventSynchronize(event); }

API Result cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
    ON_DEVICE;
    if (!start || !end || !start->recorded || !end->recorded) return INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return SUCCESS;
}
API Result cuEventElapsedTime(float* milliseconds, Event* start, Event* end) { return cuEventElapsedTime_v2(milliseconds, start, end); }

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
