// Runs the source of a kernel for a GPU on a CPU: the threads of a block are coroutines.
//
// A thread runs until it waits for its block or its warp. The order in which threads run turns
// around after every wait, so that a missing barrier shows as a wrong result. A barrier that some
// threads of a block do not reach is an error. Blocks run one after another, and find in shared
// memory what the block before left there.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define half _Float16
#define __global__
#define __device__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__
#define alignas(bytes) __attribute__((aligned(bytes)))
#define CUDART_INF_F INFINITY
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN_F NAN
#define CUDART_NAN ((double)NAN)

template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }

namespace emulation {

struct Index { int x, y, z; };
enum Wait { nothing, block_wait, warp_wait, ended };
struct Thread { void* stack; Index index; int number; Wait waits; };

static const int warp_size = 32;
static const size_t stack_size = 1 << 17;
static Index block_index, thread_index;
static Thread threads[1024];
static int count;
static std::uint64_t slots[1024];
static Thread* running;
static void* scheduler;
static void (*kernel)(void*);
static void* arguments;
static const char* failure;

extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.type emulation_switch, @function
emulation_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

static void wait_for(Wait what) {
  running->waits = what;
  emulation_switch(&running->stack, scheduler);
}

static void enter() {
  kernel(arguments);
  wait_for(ended);
}

static char* stack_of(int number) {
  static char* all = nullptr;
  if (!all)
    all = (char*)mmap(nullptr, 1024 * stack_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return all + number * stack_size;
}

static void start(Thread& thread) {
  void** top = (void**)(stack_of(thread.number) + stack_size - 64);
  *--top = nullptr;
  *--top = (void*)&enter;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  thread.stack = top;
  thread.waits = nothing;
}

static bool all(int first, int last, Wait what) {
  for (int i = first; i < last; ++i)
    if (threads[i].waits != what) return false;
  return true;
}

static bool release() {
  if (all(0, count, block_wait)) {
    for (int i = 0; i < count; ++i) threads[i].waits = nothing;
    return true;
  }
  bool some = false;
  for (int first = 0; first < count; first += warp_size) {
    int last = min(first + warp_size, count);
    if (!all(first, last, warp_wait)) continue;
    for (int i = first; i < last; ++i) threads[i].waits = nothing;
    some = true;
  }
  return some;
}

static void run_block() {
  for (int i = 0; i < count; ++i) start(threads[i]);
  bool backwards = false;
  do {
    for (int i = 0; i < count; ++i) {
      running = &threads[backwards ? count - 1 - i : i];
      if (running->waits != nothing) continue;
      thread_index = running->index;
      emulation_switch(&scheduler, running->stack);
    }
    backwards = !backwards;
  } while (release());
  if (!all(0, count, ended)) failure = "threads of a block wait at different places";
}

template <class Body> static const char* run_grid(int blocks, int wide, int high, Body body) {
  if (blocks < 1 || wide < 1 || high < 1 || wide * high > 1024) return "a grid of no size";
  kernel = [](void* given) { (*(Body*)given)(); };
  arguments = &body;
  failure = nullptr;
  count = wide * high;
  for (int i = 0; i < count; ++i) threads[i] = {nullptr, {i % wide, i / wide, 0}, i, nothing};
  for (int b = 0; b < blocks && !failure; ++b) {
    block_index = {b, 0, 0};
    run_block();
  }
  return failure;
}

template <class T> static T shuffled(T value, int mask) {
  int own = running->number, other = own ^ mask;
  std::memcpy(&slots[own], &value, sizeof value);
  wait_for(warp_wait);
  T found;
  std::memcpy(&found, &slots[other], sizeof found);
  wait_for(warp_wait);
  return found;
}

}  // namespace emulation

#define blockIdx emulation::block_index
#define threadIdx emulation::thread_index
#define __syncthreads() emulation::wait_for(emulation::block_wait)
#define __shfl_xor_sync(mask, value, lanes, width) emulation::shuffled(value, lanes)

struct Argument { std::int32_t kind; std::uint32_t unused; union { std::int64_t number; double real; void* pointer; }; };

extern "C" int TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
static inline _Float16 __float2half_rn(float number) { return (_Float16)number; }
