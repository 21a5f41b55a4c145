// SPDX-License-Identifier: Apache-2.0
// liboctavo_fake: a back end whose devices are threads. The reference kernels do its work, late and in memory that the
// host cannot read. So tests find what a processor that poses as a device hides: a missing wait, a read of private
// memory, the wrong device, a budget. OCTAVO_SYCL_PLUGIN=<its path> puts it in the place of SYCL's back end. Settings:
// OCTAVO_FAKE_DEVICES (2), OCTAVO_FAKE_MEMORY_BYTES per device (2 GiB), OCTAVO_FAKE_DELAY_US per command (500).
#include <cstring>
#include <tuple>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"
#include "tests/fake_device/memory.h"
#include "tests/fake_device/queue.h"
#include "tests/fake_device/setting.h"

namespace octavo::fake {

namespace {

constexpr const char* kWhere = "kernels.fake";

int device_count() {
  static const int count = static_cast<int>(setting("OCTAVO_FAKE_DEVICES", 2));
  return count;
}

int checked(int device) {
  if (device >= 0 && device < device_count()) return device;
  fail(ErrorCode::invalid_argument, kWhere, "expected a device from 0 to ", device_count() - 1, ", got ", device);
}

CommandQueue& commands_of(Queue queue) {
  if (queue.handle == nullptr) fail(ErrorCode::internal, kWhere, "the queue has no handle: it is not a device's");
  checked(queue.device);
  return *static_cast<CommandQueue*>(queue.handle);
}

// ---- kernels: those of the reference, with pointers at which commands find the memory

/// The memory that one command uses, collected while its arguments are translated.
struct Uses {
  int device;
  std::vector<std::shared_ptr<const Allocation>> all = {};
  ManagedUses managed = {};

  template <class T>
  T* operator()(T* pointer) {
    if (pointer == nullptr) return nullptr;
    auto used = Memory::all().used_by(device, pointer, 0);
    if (used == nullptr) {
      fail(ErrorCode::invalid_argument, kWhere, "a kernel of device ", device, " is given ordinary memory of the host");
    }
    all.push_back(used);
    managed.add(used->pages(), pointer);
    return reinterpret_cast<T*>(used->inside(pointer));
  }
  Payload operator()(Payload payload) { return {(*this)(payload.scales), (*this)(payload.codes)}; }
  EncodeInput operator()(EncodeInput input) {
    input.gradient = (*this)(input.gradient);
    input.residual = (*this)(input.residual);
    input.momentum = (*this)(input.momentum);
    input.preconditioner = (*this)(input.preconditioner);
    input.others = (*this)(input.others);
    return input;
  }
  StateView operator()(StateView state) {
    state.values = (*this)(static_cast<std::uint8_t*>(state.values));
    state.scales = (*this)(state.scales);
    return state;
  }
  StepOperands operator()(StepOperands step) {
    step.parameter = (*this)(static_cast<std::uint8_t*>(step.parameter));
    step.tail = (*this)(step.tail);
    step.gradient = (*this)(static_cast<const std::uint8_t*>(step.gradient));
    step.mean = (*this)(step.mean);
    step.square = (*this)(step.square);
    step.gradient_factor = (*this)(step.gradient_factor);
    step.nonfinite = (*this)(step.nonfinite);
    return step;
  }
  template <class Value>
  Value operator()(const Value& value) {
    return value;
  }
};

template <class Kernel, class... Arguments>
void enqueue(Kernel kernel, Queue queue, const Arguments&... arguments) {
  if (queue.is_calling_thread()) return kernel(queue, arguments...);
  CommandQueue& commands = commands_of(queue);
  Uses uses{queue.device};
  std::tuple<Arguments...> inside{uses(arguments)...};
  const auto run = [kernel, inside, managed = std::move(uses.managed)] {
    managed.around([&] { std::apply([&](const auto&... all) { kernel({}, all...); }, inside); });
  };
  commands.push({.run = run, .uses = std::move(uses.all)});
}

const KernelTable& reference() { return backend("reference"); }

/// A function of the same type that enqueues the reference's kernel. `Get` returns that kernel.
template <auto Get, class Function>
struct Late;
template <auto Get, class... Parameters>
struct Late<Get, void (*)(Queue, Parameters...)> {
  static void run(Queue queue, Parameters... arguments) { enqueue(Get(), queue, arguments...); }
};

template <auto Entry>
constexpr auto late() {
  constexpr auto get = [] { return reference().*Entry; };
  return Late<get, decltype(get())>::run;
}
#define OCTAVO_LATE(name) constexpr auto name = late<&KernelTable::name>();
OCTAVO_QUEUED_KERNELS(OCTAVO_LATE)
#undef OCTAVO_LATE
#define OCTAVO_AT_ONCE(name) constexpr auto name = [](auto... all) { return reference().name(all...); };
OCTAVO_HOST_KERNELS(OCTAVO_AT_ONCE)
#undef OCTAVO_AT_ONCE
template <BlockCodec codec>
constexpr auto encode_blocks = Late<[] { return reference().of(codec).encode; }, EncodeKernel*>::run;
template <BlockCodec codec>
constexpr auto decode_blocks = Late<[] { return reference().of(codec).decode; }, DecodeKernel*>::run;

// ---- devices, queues and events

DeviceFacts facts(int device) {
  return {.name = "fake device " + std::to_string(checked(device)),
          .vendor = "Octavo",
          .driver = "tests",
          .platform = "threads of the host",
          .is_cpu = false,
          .has_fp64 = true,
          .has_fp16 = true,
          .reads_ordinary_memory = false,
          .total_bytes = budget_bytes(),
          .compute_units = 1,
          .largest_group = 1024};
}

/// Enqueues a copy, which may be from and to ordinary memory, as SYCL's may.
void copy(Queue queue, void* to, const void* from, std::uint64_t bytes) {
  CommandQueue& commands = commands_of(queue);
  const auto target = Memory::all().used_by(queue.device, to, bytes);
  const auto source = Memory::all().used_by(queue.device, from, bytes);
  void* const out = target ? target->inside(to) : to;
  const void* const in = source ? source->inside(from) : from;
  ManagedUses managed;
  if (target) managed.add(target->pages(), to);
  if (source) managed.add(source->pages(), from);
  const auto run = [=] {
    if (bytes > 0) managed.around([&] { std::memmove(out, in, bytes); });
  };
  commands.push({.run = run, .uses = {target, source}});
}

/// An event: the mark of its latest record, none before the first one.
struct RecordedMark {
  std::mutex mutex;
  std::shared_ptr<Mark> latest;
};

RecordedMark& recorded(Event event) { return *static_cast<RecordedMark*>(event); }

std::shared_ptr<Mark> mark_of(Event event) {
  const std::lock_guard lock(recorded(event).mutex);
  return recorded(event).latest;
}

void record(Event event, Queue queue) {
  auto mark = std::make_shared<Mark>();
  commands_of(queue).push({.reaches = mark});
  const std::lock_guard lock(recorded(event).mutex);
  recorded(event).latest = mark;
}

bool is_done(Event event) {
  const auto mark = mark_of(event);
  return mark == nullptr || mark->is_reached();
}

void wait_for(Event event) {
  if (const auto mark = mark_of(event)) mark->wait();
}

void block(Queue queue, Event event) {
  if (const auto mark = mark_of(event)) commands_of(queue).push({.waits_for = mark});
}

double elapsed_ms(Event start, Event end) {
  const auto first = mark_of(start), last = mark_of(end);
  if (!first || !last) {
    fail(ErrorCode::invalid_argument, kWhere, "elapsed time needs two recorded events; one of these was not recorded");
  }
  return std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
}

const DeviceRuntime runtime = {
    .device_count = device_count,
    .facts = facts,
    .free_bytes = [](int device) { return Memory::all().free_bytes(checked(device)); },
    .allocate = [](int device, MemoryKind kind, std::uint64_t bytes,
                   std::uint64_t alignment) { return Memory::all().allocate(checked(device), kind, bytes, alignment); },
    .free = [](int device, void* memory) { Memory::all().free(checked(device), memory); },
    .create_queue = [](int device, bool) -> Queue {
      checked(device);
      static const std::chrono::microseconds delay(setting("OCTAVO_FAKE_DELAY_US", 500));
      return {new CommandQueue(delay), device};
    },
    .host_queue = []() -> Queue {
      fail(ErrorCode::unsupported, kWhere, "no fake device reads ordinary memory of the host");
    },
    .is_idle = [](Queue queue) { return commands_of(queue).is_idle(); },
    .wait = [](Queue queue) { commands_of(queue).wait(); },
    .copy = copy,
    .create_event = []() -> Event { return new RecordedMark; },
    .destroy_event = [](Event event) { delete &recorded(event); },
    .record = record,
    .is_done = is_done,
    .wait_for = wait_for,
    .block = block,
    .elapsed_ms = elapsed_ms,
    .compile = nullptr,
    .launch = nullptr,
};

const KernelTable table = {
    .name = "fake",
    .runtime = &runtime,
    .managed = &managed,
#include "octavo/kernels/entries.inc"
};

}  // namespace

}  // namespace octavo::fake

extern "C" OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi; }

extern "C" OCTAVO_API const octavo::KernelTable* octavo_backend_create(char*, std::size_t) {
  return &octavo::fake::table;
}
