// An op that is recorded: `jgpu.device.recording.entry`, written out in C++.

#pragma once

#include "calls.h"
#include "plans.h"

namespace jgpu {

class Recorded final : public Way {
 public:
  explicit Recorded(Schema schema) : schema_(std::move(schema)) {}

  bool carry_out(torch::jit::Stack* stack) override {
    const Given given = torch::jit::last(*stack, schema_.arguments.size());
    const Session session;
    if (!session.is_plain) {
      return false;
    }
    Call call(schema_.info, session.graveyard.get());
    if (!collect(call, given) || (schema_.in_place && is_given_twice(call))) {
      return false;
    }
    if (call.is_wordy && !schema_.writes_nothing) {
      return false;
    }
    const Owned key = tuple_of(call.key);
    const Owned plan = found(connected.plans, key.get());
    if (!plan) {
      return false;
    }
    Planned& planned = planned_of(plan.get());
    if (planned.returns == Returns::unasked) {
      planned.returns = returns_of(plan.get(), planned);
    }
    if (planned.returns == Returns::other || !planned.takes(call.params) ||
        (planned.returns == Returns::several && !schema_.writes_nothing &&
         any_is_given_twice(call))) {
      return false;
    }
    enter(session, call, plan.get(), planned, stack);
    return true;
  }

 private:
  using Tensors = c10::SmallVector<at::Tensor, 4>;

  // The session's parts, which it keeps for as long as it lives.
  struct Parts {
    Owned session, buffers, log, entries, poisoned;
  };

  // The session; it is plain unless there is none yet, or tensors of it are poisoned.
  struct Session {
    const Parts& parts;
    Owned graveyard;
    bool is_plain;

    Session() : parts(parts_of(session_now())) {
      is_plain = parts.buffers && PyDict_GET_SIZE(parts.poisoned.get()) == 0;
      if (is_plain) {
        graveyard = slots.sessions_graveyard.of(parts.buffers.get());
      }
    }

   private:
    static Owned session_now() {
      Owned session = found(PyModule_GetDict(connected.current), names.session);
      return session ? std::move(session) : attribute(connected.current, names.session);
    }

    static const Parts& parts_of(Owned session) {
      static auto& known = *new Parts; // outlives Python
      if (known.session.get() != session.get()) {
        Parts made;
        if (session.get() != Py_None) {
          made.buffers = attribute(session.get(), names.buffers);
          made.poisoned = attribute(made.buffers.get(), names.poisoned);
          made.log = attribute(session.get(), names.log);
          made.entries = attribute(made.log.get(), names.entries);
        }
        made.session = std::move(session);
        std::swap(known, made);
      }
      return known;
    }
  };

  using Returns = Planned::Returns;

  bool collect(Call& call, Given given) const {
    const size_t count = schema_.said(given);
    for (size_t i = 0; i < count; ++i) {
      if (!call.add(schema_.arguments[i], given[i])) {
        return false;
      }
    }
    bool says_dtype = false;
    for (size_t i = schema_.positional; i < given.size(); ++i) {
      const Argument& argument = schema_.arguments[i];
      if (!argument.is_default(given[i])) {
        if (!call.add_named(argument, given[i])) {
          return false;
        }
        says_dtype = says_dtype || argument.kind == Kind::dtype;
      }
    }
    if (schema_.of_default_dtype && !says_dtype) {
      call.add_default_dtype();
    }
    return true;
  }

  // Such an op may read what it writes.
  static bool is_given_twice(const Call& call) {
    const auto& buffers = call.buffers;
    return buffers.size() > 1 &&
        std::find(buffers.begin() + 1, buffers.end(), buffers[0]) != buffers.end();
  }

  static bool any_is_given_twice(const Call& call) {
    auto sorted = call.buffers;
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  }

  // What a plan says is returned, of which notes are taken.
  Returns returns_of(PyObject* plan, Planned& planned) const {
    planned.made.clear();
    const Owned single = attribute(plan, names.single);
    if (single.get() != Py_None) {
      planned.make(single.get());
      const bool fits = schema_.returns == 1 && !schema_.returns_list;
      return fits && planned.none_is_lazy() ? Returns::one : Returns::other;
    }
    if (attribute(plan, names.writes_first).get() == Py_True) {
      return schema_.returns == 1 && !schema_.returns_list ? Returns::first : Returns::other;
    }
    const Owned several = attribute(plan, names.several);
    if (PyTuple_CheckExact(several.get())) {
      make_each(planned, several.get());
      const bool fits = schema_.returns == planned.made.size();
      return fits && planned.none_is_lazy() ? Returns::several : Returns::other;
    }
    const Owned many = attribute(plan, names.many);
    if (!PyList_CheckExact(many.get())) {
      return Returns::other;
    }
    if (PyList_GET_SIZE(many.get()) == 0) {
      return schema_.returns == 0 ? Returns::nothing : Returns::other;
    }
    make_each(planned, many.get());
    return schema_.returns_list && planned.none_is_lazy() ? Returns::list : Returns::other;
  }

  static void make_each(Planned& planned, PyObject* geometries) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(geometries); ++i) {
      planned.make(PySequence_Fast_GET_ITEM(geometries, i));
    }
  }

  // The op's entry in the log, and what it returns. What is told of a large buffer may correct
  // plans: nothing of this one's is looked at behind that.
  void enter(
      const Session& session, Call& call, PyObject* plan, const Planned& planned,
      torch::jit::Stack* stack) const {
    const Returns returns = planned.returns;
    c10::SmallVector<std::pair<Owned, const Layout*>, 4> geometries;
    for (const Planned::Made& each : planned.made) {
      geometries.emplace_back(
          each.layout == nullptr ? Owned() : held(each.geometry.get()), each.layout);
    }
    Call::List outs;
    Tensors made;
    for (const auto& [geometry, layout] : geometries) {
      make(session, geometry.get(), layout, outs, made);
    }
    if (returns == Returns::first) {
      made.push_back(torch::jit::last(*stack, schema_.arguments.size())[0].toTensor());
    }
    note(session, call, plan, tuple_of(outs));
    torch::jit::drop(*stack, schema_.arguments.size());
    if (returns == Returns::list) {
      stack->push_back(list_of(made));
    } else {
      for (auto& each : made) {
        stack->emplace_back(std::move(each));
      }
    }
  }

  // A new buffer, and a tensor over it; an undefined tensor where there is no geometry.
  static void make(
      const Session& session, PyObject* geometry, const Layout* layout, Call::List& outs,
      Tensors& made) {
    if (layout == nullptr) {
      made.emplace_back();
      return;
    }
    PyObject* arguments[] = {layout->said_nbytes.get(), session.graveyard.get()};
    Owned buffer = checked(PyObject_Vectorcall(connected.new_handle, arguments, 2, nullptr));
    if (static_cast<double>(layout->nbytes) > connected.large) {
      checked(PyObject_CallOneArg(connected.note_large, buffer.get()));
    }
    made.push_back(wrap(buffer.get(), geometry, *layout, 0));
    outs.push_back(buffer.release());
  }

  // Once the entry is in the log nothing here holds its buffers: the cut counts who does.
  static void note(const Session& session, Call& call, PyObject* plan, Owned outs) {
    PyObject* log = session.parts.log.get();
    PyObject* entries = session.parts.entries.get();
    {
      const Owned buffers = tuple_of(call.buffers);
      const Owned offsets = tuple_of(call.offsets);
      const Owned params = tuple_of(call.params);
      const Owned instruction = integer_of(instruction_of(log));
      const Owned fresh = std::move(outs);
      const Owned entry = checked(PyTuple_Pack(
          6, plan, buffers.get(), offsets.get(), fresh.get(), params.get(), instruction.get()));
      check(PyList_Append(entries, entry.get()));
    }
    if (PyList_GET_SIZE(entries) >= integer(slots.limit.of(log).get())) {
      checked(PyObject_CallOneArg(connected.cut_piece, session.parts.session.get()));
    }
  }

  static int64_t instruction_of(PyObject* log) {
    Owned frame = slots.frame.of(log);
    if (frame.get() == Py_None) {
      frame = checked(PyObject_CallOneArg(connected.look, log));
    }
    return frame.get() == Py_None
        ? -1
        : PyFrame_GetLasti(reinterpret_cast<PyFrameObject*>(frame.get()));
  }

  Schema schema_;
};

} // namespace jgpu
