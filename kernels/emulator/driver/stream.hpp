// How copies and launches are put on a stream, and how a call waits for streams.
#pragma once
#include "driver.hpp"
#include <functional>
#include <vector>

namespace driver {

using Work = std::function<Result()>;

// Does the work on this stream, now or later. A mistake in earlier work may be what it returns, as with a real driver.
Result enqueue(void* stream, Work work);

// Does all that waits on this stream, with what that needs of others.
Result drain(void* stream);
// Does all that a call without a stream waits for.
Result drain_blocking();
Result drain_all();

}  // namespace driver
