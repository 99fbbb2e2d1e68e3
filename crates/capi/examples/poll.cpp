// Polls the events of a reply in C++, with handles that close themselves.
//
//     c++ -std=c++17 poll.cpp -lgirih -o poll && ./poll stories260k
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "girih.h"

namespace {

void check(girih_status status) {
    if (status != GIRIH_STATUS_OK) {
        throw std::runtime_error(std::string(girih_status_name(status)) + ": " + girih_last_error());
    }
}

struct Close {
    void operator()(girih_model *model) const { girih_close(model); }
    void operator()(girih_reply *reply) const { girih_reply_close(reply); }
    void operator()(char *text) const { girih_string_free(text); }
};

using Model = std::unique_ptr<girih_model, Close>;
using Reply = std::unique_ptr<girih_reply, Close>;
using Text = std::unique_ptr<char, Close>;

Model open(const char *name) {
    girih_model *model = nullptr;
    check(girih_open(name, R"({"threads": 1})", &model));
    return Model(model);
}

Reply submit(const Model &model, const char *request) {
    girih_reply *reply = nullptr;
    check(girih_submit(model.get(), request, &reply));
    return Reply(reply);
}

Text next(const Reply &reply) {
    char *event = nullptr;
    girih_status status = girih_next(reply.get(), 10, &event);
    while (status == GIRIH_STATUS_TIMED_OUT) {
        status = girih_next(reply.get(), 10, &event);
    }
    check(status);
    return Text(event);
}

}  // namespace

int main(int argc, char **argv) try {
    const Model model = open(argc > 1 ? argv[1] : "stories260k");
    const Reply reply = submit(model, R"({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24})");
    int events = 0;
    for (Text event = next(reply); event; event = next(reply)) {
        std::puts(event.get());
        events += 1;
    }
    return events > 2 ? 0 : 1;
} catch (const std::exception &fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
}
