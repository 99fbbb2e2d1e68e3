/* Continues a text with a small model, event by event, then with the calls of ie_engine_create, and compares both.
 *
 *     cc -std=c99 generate.c -lgirih -o generate && ./generate stories260k "Once upon a time" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "girih.h"

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, girih_last_error());
    return 1;
}

/* Counts events and prints each: one JSON object a line. */
static int print_event(const char *event, void *user) {
    int *count = (int *)user;
    *count += 1;
    puts(event);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "stories260k";
    int events = 0;
    girih_model *model = NULL;
    char *plan = NULL;
    if (girih_check_abi(GIRIH_ABI_VERSION) != GIRIH_STATUS_OK) {
        return fail("abi");
    }
    if (girih_open(name, "{\"threads\": 1}", &model) != GIRIH_STATUS_OK) {
        return fail("open");
    }
    if (girih_plan(model, &plan) != GIRIH_STATUS_OK) {
        return fail("plan");
    }
    puts(plan);
    girih_string_free(plan);
    if (girih_generate(model, "{\"prompt\": \"Once upon a time\", \"temperature\": 0, \"max_tokens\": 24}", print_event,
                       &events) != GIRIH_STATUS_OK) {
        return fail("generate");
    }
    if (girih_close(model) != GIRIH_STATUS_OK) {
        return fail("close");
    }
    return events > 0 ? 0 : 1;
}
