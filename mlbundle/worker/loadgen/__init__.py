"""MLCommons' LoadGen: its four scenarios, each test in a process of its own, for LoadGen's state is the process's."""
