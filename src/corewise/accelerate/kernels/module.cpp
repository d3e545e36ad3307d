// The Python interface of the executor: graphs, lanes and runs as Python objects.
#include "boxing.h"
#include "contents.h"
#include "executor.h"

namespace torch {
void translate_exception_to_python(const std::exception_ptr& error);
}

namespace corewise {

void check_signals() {
  py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::vector<int> ints(py::handle sequence) {
  std::vector<int> found;
  for (py::handle item : sequence) found.push_back(item.cast<int>());
  return found;
}

// Call the function and convert what it throws to the exception that plain torch would raise.
template <class Action>
auto translated(const Action& action) {
  try {
    return action();
  } catch (const py::error_already_set&) {
    throw;
  } catch (const py::builtin_exception&) {
    throw;
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    throw py::error_already_set();
  }
}

std::shared_ptr<Graph> make_graph(
    int num_values, py::list calls, py::list brought, py::list outputs, bool may_repeat, py::object ref) {
  return translated([&] {
    auto graph = std::make_shared<Graph>();
    graph->num_values = num_values;
    graph->num_uses.resize(num_values);
    graph->brought = ints(brought);
    graph->outputs = ints(outputs);
    graph->may_repeat = may_repeat;
    for (py::handle call : calls) {
      graph->ops.push_back(make_op(call, ref));
      for (int value : graph->ops.back().reads) ++graph->num_uses[value];
    }
    for (int value : graph->outputs) ++graph->num_uses[value];
    return graph;
  });
}

IValue given(py::handle object) {
  if (object.is_none()) return IValue();
  if (PyBool_Check(object.ptr())) return IValue(object.cast<bool>());
  if (PyLong_Check(object.ptr())) return IValue(object.cast<int64_t>());
  if (PyFloat_Check(object.ptr())) return IValue(object.cast<double>());
  if (PyUnicode_Check(object.ptr())) return IValue(object.cast<std::string>());
  return torch::jit::toIValue(object, c10::TensorType::get(), std::nullopt);
}

void bring(const Graph& graph, const py::list& values, std::vector<IValue>& items) {
  TORCH_CHECK(int(values.size()) == graph.num_values, "a list of all the program's values is needed");
  for (int value : graph.brought) items[value] = given(values[value]);
}

Schedule make_schedule(Lanes& lanes, py::handle lane_cpus, py::handle steps, size_t num_tasks) {
  Schedule schedule;
  std::map<std::vector<int>, int> seen;
  for (py::handle cpus : lane_cpus) {
    const auto numbers = ints(cpus);
    const int number = seen[numbers]++;
    schedule.helps.push_back(numbers.size() == 1);
    // A run in progress may need Python's lock before the lanes are free.
    py::gil_scoped_release without_lock;
    schedule.workers.push_back(
        schedule.workers.empty() ? nullptr : lanes.worker(numbers, number, schedule.claims));
  }
  schedule.lanes.resize(schedule.workers.size());
  // The caller helps only if it has a single-core lane.
  schedule.helps.at(0) = false;
  std::vector<int> step_of(num_tasks, -1);
  std::vector<std::vector<int>> after;
  for (py::handle item : steps) {
    const auto it = py::reinterpret_borrow<py::tuple>(item);
    const int number = static_cast<int>(schedule.steps.size());
    const int task = it[0].cast<int>(), lane = it[1].cast<int>();
    step_of.at(task) = number;
    const int width = it[3].cast<int>();
    const bool shared = it[5].cast<bool>();
    schedule.steps.push_back(
        Step{task, lane, it[2].cast<int>(), width, schedule.lanes.at(lane).empty(), 0, {}, shared});
    if (!schedule.lanes[lane].empty()) schedule.steps.back().before = schedule.lanes[lane].back();
    if (shared) schedule.shared.push_back(number);
    if (lane == 0 && width == 1) schedule.helps[0] = true;
    schedule.lanes[lane].push_back(number);
    after.push_back(ints(it[4]));
  }
  for (size_t step = 0; step < after.size(); ++step)
    for (int task : after[step]) {
      Step& earlier = schedule.steps.at(step_of.at(task));
      const bool may_move = earlier.shared || schedule.steps[step].shared;
      // The order within the lane guarantees this.
      if (earlier.lane == schedule.steps[step].lane && !may_move) continue;
      earlier.dependents.push_back(static_cast<int>(step));
      schedule.steps[step].needs.push_back(step_of[task]);
      ++schedule.steps[step].num_after;
    }
  schedule.typical_ns.reset(new std::atomic<int64_t>[after.size()]);
  for (size_t step = 0; step < after.size(); ++step) schedule.typical_ns[step].store(0);
  return schedule;
}

std::shared_ptr<Executor> make_executor(
    std::shared_ptr<Graph> graph,
    std::shared_ptr<Lanes> lanes,
    py::list tasks,
    py::list lane_cpus,
    py::list steps,
    py::object back) {
  return translated([&] {
    Tasks calls;
    for (py::handle task : tasks) calls.push_back(ints(task));
    Schedule forward = make_schedule(*lanes, lane_cpus, steps, calls.size());
    auto executor = std::make_shared<Executor>(graph, lanes, std::move(calls), std::move(forward));
    if (!back.is_none()) {
      const auto it = py::reinterpret_borrow<py::tuple>(back);
      executor->allow_training(make_schedule(*lanes, it[0], it[1], executor->tasks.size()));
    }
    return executor;
  });
}

// Return (task, lane, start, end) of each step of the last run, forward or backward, in seconds of perf_counter.
py::list timeline(std::shared_ptr<Executor> executor, bool is_backward) {
  py::list found;
  for (const Event& it : executor->timeline(is_backward))
    found.append(py::make_tuple(it.task, it.lane, double(it.start_ns) * 1e-9, double(it.end_ns) * 1e-9));
  return found;
}

void warn(const std::vector<Warned>& warnings) {
  for (const Warned& it : warnings) {
    PyObject* category = it.is_deprecation ? PyExc_DeprecationWarning : PyExc_UserWarning;
    if (PyErr_WarnEx(category, it.message.c_str(), 1) != 0) throw py::error_already_set();
  }
}

// Compute the outputs and store them in their positions of the list.
void run(std::shared_ptr<Executor> executor, py::list values) {
  translated([&] {
    const Graph& graph = *executor->graph;
    Values held(graph);
    bring(graph, values, held.items);
    Warnings warnings;
    {
      py::gil_scoped_release without_lock;
      executor->run(executor, held, warnings);
    }
    warn(warnings.taken());
    for (int value : graph.outputs) values[value] = torch::jit::toPyObject(std::move(held.items[value]));
    return true;
  });
}

std::shared_ptr<Values> record(std::shared_ptr<Graph> graph, py::list brought) {
  return translated([&] {
    auto values = std::make_shared<Values>(*graph);
    bring(*graph, brought, values->items);
    py::gil_scoped_release without_lock;
    std::vector<int> all(graph->ops.size());
    std::iota(all.begin(), all.end(), 0);
    call_all(*graph, all, values->items);
    return values;
  });
}

py::list as_list(const std::vector<int64_t>& numbers) {
  py::list found;
  for (int64_t number : numbers) found.append(number);
  return found;
}

py::list measure(
    std::shared_ptr<Lanes> lanes,
    std::shared_ptr<Graph> graph,
    std::shared_ptr<Values> values,
    py::list calls,
    py::list before,
    py::list cpus,
    int repeats,
    double limit_s) {
  return translated([&] {
    const auto measured = ints(calls), earlier = ints(before), where = ints(cpus);
    std::vector<int64_t> found;
    {
      py::gil_scoped_release without_lock;
      const auto limit_ns = int64_t(limit_s * 1e9);
      found = measure_calls(*lanes, *graph, values->items, measured, earlier, where, repeats, limit_ns);
    }
    return as_list(found);
  });
}

py::tuple measure_training(
    std::shared_ptr<Executor> executor,
    std::shared_ptr<Values> values,
    int task,
    py::list cpus,
    int repeats,
    double limit_s) {
  return translated([&] {
    const auto where = ints(cpus);
    std::pair<std::vector<int64_t>, std::vector<int64_t>> found;
    {
      py::gil_scoped_release without_lock;
      found = measure_task(*executor, values->items, task, where, repeats, int64_t(limit_s * 1e9));
    }
    return py::make_tuple(as_list(found.first), as_list(found.second));
  });
}

// Return a checksum for each tensor, None if one of them cannot be read.
py::object contents(py::list tensors) {
  return translated([&]() -> py::object {
    std::vector<at::Tensor> given;
    for (py::handle it : tensors)
      given.push_back(torch::jit::toIValue(it, c10::TensorType::get(), std::nullopt).toTensor());
    std::optional<std::vector<uint64_t>> found;
    {
      py::gil_scoped_release without_lock;
      found = contents_of(given);
    }
    if (!found) return py::none();
    py::list numbers;
    for (uint64_t number : *found) numbers.append(number);
    return numbers;
  });
}

PYBIND11_MODULE(corewise_native, module) {
  py::class_<Graph, std::shared_ptr<Graph>>(module, "Graph", py::module_local());
  py::class_<Values, std::shared_ptr<Values>>(module, "Values", py::module_local());
  py::class_<Executor, std::shared_ptr<Executor>>(module, "Executor", py::module_local());
  py::class_<Lanes, std::shared_ptr<Lanes>>(module, "Lanes", py::module_local())
      .def(py::init<>())
      .def("usable", &Lanes::usable)
      .def("num_threads", &Lanes::num_threads)
      .def("end_unused", &Lanes::end_unused, py::call_guard<py::gil_scoped_release>())
      .def("close", &Lanes::close, py::call_guard<py::gil_scoped_release>());
  module.def("contents", &contents);
  module.def("graph", &make_graph);
  module.def("executor", &make_executor);
  module.def("run", &run);
  module.def("timeline", &timeline);
  module.def("record", &record);
  module.def("measure", &measure);
  module.def("measure_training", &measure_training);
  module.def("is_inside_a_run", [] { return inside_a_run; });
}

}  // namespace corewise
