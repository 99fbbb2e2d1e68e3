/* What girih.h promises: replies equal to the golden ones, wrong calls that are refused, events, handles, threads.
 *
 *     contract replies | refusals | embeddings FOLDER | engine | sparse FILE | threads | cycles COUNT
 *
 * golden.h has the golden ids of the built-in model; crates/capi/check.sh makes it and runs this program. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "girih.h"
#include "golden.h"

/* Exact arithmetic, as the golden ids have it. */
#define EXACT "\"backend_options\": {\"act-precision\": \"f32\", \"packed-cache\": \"off\"}, \"kv\": \"f32\""
#define MAX_IDS 512

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: %s is false; the last error is: %s\n", __FILE__, __LINE__, #condition, \
                    girih_last_error());                                                    \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)
#define OK(call) CHECK((call) == GIRIH_STATUS_OK)
/* The call is refused with this code, and a sentence that has these words. */
#define REFUSED(call, code, words)                                \
    do {                                                          \
        CHECK((call) == (code));                                  \
        CHECK(strstr(girih_last_error(), (words)) != NULL);       \
    } while (0)

static girih_model *opened(const char *options) {
    girih_model *model = NULL;
    OK(girih_open("stories260k", options, &model));
    CHECK(model != NULL);
    return model;
}

/* The numbers of the list "ids" of an event; returns how many there are. */
static size_t ids_of(const char *event, uint32_t *ids) {
    const char *at = strstr(event, "\"ids\":[");
    size_t count = 0;
    CHECK(at != NULL);
    at += strlen("\"ids\":[");
    while (*at != ']') {
        char *end = NULL;
        CHECK(count < MAX_IDS);
        ids[count] = (uint32_t)strtoul(at, &end, 10);
        CHECK(end != at);
        count += 1;
        at = *end == ',' ? end + 1 : end;
    }
    return count;
}

/* Whether the end of a reply says that it was cancelled, or had all its tokens before. */
static int is_cancelled(const char *end) {
    return strstr(end, "\"stop\":\"cancelled\"") != NULL || strstr(end, "\"stop\":\"length\"") != NULL;
}

struct reply {
    uint32_t ids[MAX_IDS];
    size_t count;
    int events;
    int cancel_at;
    int cancelled;
};

static int collect(const char *event, void *user) {
    struct reply *reply = (struct reply *)user;
    reply->events += 1;
    if (strncmp(event, "{\"event\":\"end\"", 14) == 0) {
        reply->count = ids_of(event, reply->ids);
        reply->cancelled = is_cancelled(event);
    }
    return reply->events == reply->cancel_at;
}

static void write_request(char *request, size_t size, const struct golden *golden) {
    snprintf(request, size, "{\"prompt\": \"%s\", \"temperature\": 0, \"max_tokens\": %d}", golden->prompt,
             (int)(golden->count - golden->prompt_count));
}

static void compare(const uint32_t *ids, size_t count, const struct golden *golden) {
    size_t shorter = count < golden->count ? count : golden->count;
    CHECK(shorter >= 60);
    CHECK(memcmp(ids, golden->ids, shorter * sizeof *ids) == 0);
}

static void replies(void) {
    girih_model *model = opened("{" EXACT ", \"threads\": 2}");
    size_t run;
    char *text = NULL;
    uint32_t ids[64];
    size_t count = 0;
    for (run = 0; run < GOLDEN_RUNS; run += 1) {
        struct reply reply = {0};
        char request[512];
        write_request(request, sizeof request, &GOLDEN[run]);
        OK(girih_generate(model, request, collect, &reply));
        compare(reply.ids, reply.count, &GOLDEN[run]);
        CHECK(reply.events > 60);
    }
    OK(girih_tokenize(model, GOLDEN[1].prompt, 0, ids, 64, &count));
    CHECK(count == GOLDEN[1].prompt_count && memcmp(ids, GOLDEN[1].ids, count * sizeof *ids) == 0);
    OK(girih_detokenize(model, ids, count, &text));
    CHECK(strcmp(text, GOLDEN[1].prompt) == 0);
    OK(girih_string_free(text));
    OK(girih_info(model, &text));
    CHECK(strstr(text, "\"started\":true") != NULL && strstr(text, "\"vocabulary\":512") != NULL);
    OK(girih_string_free(text));
    OK(girih_plan(model, &text));
    CHECK(strstr(text, "\"memory\":{\"weights\":") != NULL);
    OK(girih_string_free(text));
    OK(girih_capabilities(&text));
    CHECK(strstr(text, "\"name\":\"cpu\"") != NULL);
    OK(girih_string_free(text));
    OK(girih_close(model));
}

/* Polls to the end, then cancels one from another handle and by its callback. */
static void polls(void) {
    girih_model *model = opened("{" EXACT ", \"sequences\": 2}");
    girih_reply *reply = NULL;
    struct reply cancelled = {0};
    char *event = NULL;
    int events = 0;
    OK(girih_submit(model, "{\"prompt\": \"Once\", \"temperature\": 0, \"max_tokens\": 5}", &reply));
    for (;;) {
        OK(girih_next(reply, -1, &event));
        if (event == NULL) {
            break;
        }
        events += 1;
        OK(girih_string_free(event));
    }
    CHECK(events == 7); /* the start, five tokens, the end */
    OK(girih_next(reply, 0, &event));
    CHECK(event == NULL);
    OK(girih_reply_close(reply));
    /* Nobody reads it, so that it is not at its end. */
    OK(girih_submit(model, "{\"prompt\": \"Once\", \"temperature\": 0, \"max_tokens\": 400}", &reply));
    OK(girih_cancel(reply));
    OK(girih_close(model)); /* the reply keeps it */
    do {
        OK(girih_next(reply, -1, &event));
        CHECK(event != NULL);
        events = strncmp(event, "{\"event\":\"end\"", 14) == 0;
        CHECK(!events || is_cancelled(event));
        OK(girih_string_free(event));
    } while (!events);
    OK(girih_reply_close(reply));
    model = opened(NULL);
    cancelled.cancel_at = 3;
    OK(girih_generate(model, "{\"prompt\": \"Once\", \"max_tokens\": 400}", collect, &cancelled));
    CHECK(cancelled.cancelled);
    OK(girih_submit(model, "{\"prompt\": \"Once\", \"max_tokens\": 400}", &reply));
    OK(girih_reply_close(reply)); /* unread */
    OK(girih_close(model));
}

static void refuse_pointers(girih_model *model) {
    char *text = NULL;
    size_t count = 7;
    uint32_t ids[2];
    girih_reply *reply = NULL;
    girih_model *other = NULL;
    const girih_status bad = GIRIH_STATUS_INVALID_ARGUMENT;
    REFUSED(girih_open(NULL, NULL, &other), bad, "null");
    REFUSED(girih_open("stories260k", NULL, NULL), bad, "null");
    REFUSED(girih_open("\xff", NULL, &other), bad, "UTF-8");
    REFUSED(girih_open("stories260k", "{\"kv\": \"\xc0\"}", &other), bad, "UTF-8");
    REFUSED(girih_capabilities(NULL), bad, "null");
    REFUSED(girih_info(model, NULL), bad, "null");
    REFUSED(girih_plan(NULL, &text), bad, "null");
    REFUSED(girih_start(NULL), bad, "null");
    REFUSED(girih_tokenize(model, NULL, 0, ids, 2, &count), bad, "null");
    REFUSED(girih_tokenize(model, "a", 0, NULL, 2, &count), bad, "null");
    REFUSED(girih_tokenize(model, "a", 0, ids, 2, NULL), bad, "null");
    REFUSED(girih_tokenize(model, "a", 0, ids, (size_t)-1, &count), bad, "memory");
    REFUSED(girih_detokenize(model, NULL, 2, &text), bad, "null");
    REFUSED(girih_detokenize(model, ids, 0, NULL), bad, "null");
    REFUSED(girih_generate(model, NULL, NULL, NULL), bad, "null");
    REFUSED(girih_submit(model, "{}", NULL), bad, "null");
    REFUSED(girih_next(NULL, 0, &text), bad, "null");
    REFUSED(girih_cancel(NULL), bad, "null");
    REFUSED(girih_reply_close(NULL), bad, "null");
    REFUSED(girih_close(NULL), bad, "null");
    REFUSED(girih_embed(model, NULL, NULL, 0, &count), bad, "null");
    OK(girih_string_free(NULL));
    CHECK(other == NULL && reply == NULL && text == NULL);
    OK(girih_generate(model, "{\"prompt\": \"a\", \"max_tokens\": 1}", NULL, NULL));
}

static void refuse_values(girih_model *model) {
    size_t count = 0;
    uint32_t ids[1];
    girih_model *other = NULL;
    const girih_status bad = GIRIH_STATUS_INVALID_ARGUMENT;
    REFUSED(girih_check_abi(99), GIRIH_STATUS_REFUSED, "99");
    REFUSED(girih_open("no/such.gguf", NULL, &other), GIRIH_STATUS_NOT_FOUND, "no/such.gguf");
    REFUSED(girih_open("stories260k", "[]", &other), bad, "JSON object");
    REFUSED(girih_open("stories260k", "{\"treads\": 1}", &other), bad, "treads");
    REFUSED(girih_open("stories260k", "{\"threads\": 1, \"threads\": 2}", &other), bad, "duplicate");
    REFUSED(girih_generate(model, "{\"prompt\": \"a\"", NULL, NULL), bad, "request");
    REFUSED(girih_generate(model, "{\"prompt\": \"a\", \"max_tokens\": 0}", NULL, NULL), GIRIH_STATUS_REFUSED, "0");
    REFUSED(girih_generate(model, "{\"prompt\": \"a\", \"max_tokens\": 5000}", NULL, NULL), GIRIH_STATUS_TOO_LONG, "5000");
    REFUSED(girih_generate(model, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", NULL, NULL),
            GIRIH_STATUS_REFUSED, "template");
    REFUSED(girih_tokenize(model, "Once upon a time", 0, ids, 1, &count), GIRIH_STATUS_BUFFER_TOO_SMALL, "1");
    CHECK(count == GOLDEN[1].prompt_count);
    REFUSED(girih_embed(model, "{\"input\": [\"a\"]}", NULL, 0, &count), GIRIH_STATUS_REFUSED, "e");
    CHECK(girih_status_name(-1) == NULL && girih_status_name(1000) == NULL);
    CHECK(strcmp(girih_status_name(GIRIH_STATUS_TOO_LONG), "too_long") == 0);
}

static void refuse_handles(girih_model *model) {
    const girih_status closed = GIRIH_STATUS_INVALID_HANDLE;
    girih_model *other = opened(NULL);
    girih_reply *reply = NULL;
    char *text = NULL;
    int number = 0;
    OK(girih_close(other));
    REFUSED(girih_close(other), closed, "closed");
    REFUSED(girih_start(other), closed, "closed");
    REFUSED(girih_generate(other, "{}", NULL, NULL), closed, "closed");
    REFUSED(girih_close((girih_model *)(void *)&number), closed, "closed");
    REFUSED(girih_close((girih_model *)(uintptr_t)-1), closed, "closed");
    OK(girih_submit(model, "{\"prompt\": \"a\", \"max_tokens\": 1}", &reply));
    REFUSED(girih_close((girih_model *)(void *)reply), closed, "closed"); /* another kind */
    REFUSED(girih_next((girih_reply *)(void *)model, 0, &text), closed, "closed");
    OK(girih_reply_close(reply));
    REFUSED(girih_next(reply, 0, &text), closed, "closed");
    REFUSED(girih_cancel(reply), closed, "closed");
    OK(girih_info(model, &text));
    OK(girih_string_free(text));
    REFUSED(girih_string_free(text), closed, "freed");
    REFUSED(girih_string_free((char *)(void *)&number), closed, "none");
}

static void refusals(void) {
    girih_model *model = opened(NULL);
    CHECK(girih_last_error()[0] == '\0');
    refuse_pointers(model);
    refuse_values(model);
    refuse_handles(model);
    OK(girih_close(model));
    polls();
}

static void embeddings(const char *folder) {
    girih_model *model = NULL;
    const char *both = "{\"input\": [[2, 7, 9, 3], [2, 8, 3]]}";
    float *values = NULL;
    float alone[512];
    size_t needed = 0;
    size_t count = 0;
    OK(girih_open(folder, "{" EXACT "}", &model));
    REFUSED(girih_embed(model, both, NULL, 0, &needed), GIRIH_STATUS_BUFFER_TOO_SMALL, "needed");
    CHECK(needed > 0 && needed % 2 == 0 && needed / 2 <= 512);
    values = (float *)malloc(needed * sizeof *values);
    CHECK(values != NULL);
    OK(girih_embed(model, both, values, needed, &count));
    CHECK(count == needed);
    OK(girih_embed(model, "{\"input\": [[2, 8, 3]]}", alone, 512, &count));
    CHECK(count == needed / 2);
    CHECK(memcmp(alone, values + count, count * sizeof *alone) == 0);
    REFUSED(girih_generate(model, "{\"prompt\": [2]}", NULL, NULL), GIRIH_STATUS_REFUSED, "e");
    free(values);
    OK(girih_close(model));
}

/* A thread of its own, so that no other test runs on the socket alone. */
static void *bind_to_first(void *topo) {
    CHECK(ie_topology_bind_thread_to_socket(topo, 0) == 0);
    return NULL;
}

static void topology(void) {
    ie_topology_t *topo = NULL;
    pthread_t bound;
    int socket;
    CHECK(ie_topology_init(NULL) < 0);
    CHECK(ie_topology_init(&topo) == 0 && topo != NULL);
    CHECK(ie_topology_cpus(topo) >= 1 && ie_topology_sockets(topo) >= 1 && ie_topology_nodes(topo) >= 1);
    for (socket = 0; socket < ie_topology_sockets(topo); socket += 1) {
        int cpu = ie_topology_first_cpu_on_socket(topo, socket);
        CHECK(cpu >= 0 && ie_topology_cpu_to_socket(topo, cpu) == socket && ie_topology_cpu_to_node(topo, cpu) >= 0);
    }
    CHECK(ie_topology_first_cpu_on_socket(topo, socket) == -1 && ie_topology_first_cpu_on_socket(topo, -1) == -1);
    CHECK(ie_topology_cpu_to_socket(topo, -1) == -1 && ie_topology_cpu_to_node(topo, 1 << 30) == -1);
    CHECK(ie_topology_bind_thread_to_socket(topo, -1) < 0 && ie_topology_bind_thread_to_socket(topo, socket) < 0);
    CHECK(ie_topology_bind_thread_to_socket(NULL, 0) < 0);
    CHECK(pthread_create(&bound, NULL, bind_to_first, topo) == 0 && pthread_join(bound, NULL) == 0);
    ie_topology_destroy(topo);
    CHECK(ie_topology_cpus(topo) == 0);
    ie_topology_destroy(topo);
    ie_topology_destroy(NULL);
}

static void engine(void) {
    ie_engine_t *engine_handle = NULL;
    ie_engine_params_t params = {2, "none", "woh", "auto", "fp32"};
    ie_metrics_t metrics;
    uint32_t tokens[64];
    uint32_t count = 9;
    const struct golden *golden = &GOLDEN[1];
    unsetenv("GIRIH_MODEL");
    CHECK(ie_engine_create(&params, &engine_handle) == IE_ERR_IO && engine_handle == NULL);
    CHECK(strstr(girih_last_error(), "GIRIH_MODEL") != NULL);
    CHECK(setenv("GIRIH_MODEL", "stories260k", 1) == 0);
    CHECK(ie_engine_create(&params, NULL) == IE_ERR_INVALID_ARGUMENT);
    params.precision = "int4w";
    CHECK(ie_engine_create(&params, &engine_handle) == IE_ERR_INVALID_ARGUMENT);
    params.precision = "fp32";
    CHECK(ie_engine_create(&params, &engine_handle) == IE_OK);
    CHECK(ie_engine_metrics(engine_handle, &metrics) == IE_OK && metrics.tps_true == 0.0);
    CHECK(ie_engine_generate(engine_handle, golden->prompt, 0, NULL, &count) == IE_OK && count == 0);
    CHECK(ie_engine_generate(engine_handle, golden->prompt, 64, tokens, &count) == IE_OK && count == 64);
    CHECK(memcmp(tokens, golden->ids + golden->prompt_count, 48 * sizeof *tokens) == 0);
    CHECK(ie_engine_metrics(engine_handle, &metrics) == IE_OK);
    CHECK(metrics.tps_true > 0 && metrics.latency_p50_ms > 0 && metrics.latency_p95_ms >= metrics.latency_p50_ms);
    CHECK(metrics.rss_peak_mb > 0 && metrics.kv_hits + metrics.kv_misses == golden->prompt_count);
    CHECK(ie_engine_generate(engine_handle, NULL, 1, tokens, &count) == IE_ERR_INVALID_ARGUMENT);
    CHECK(ie_engine_generate(engine_handle, "a", 1, NULL, &count) == IE_ERR_INVALID_ARGUMENT);
    CHECK(ie_engine_metrics(engine_handle, NULL) == IE_ERR_INVALID_ARGUMENT);
    ie_engine_destroy(engine_handle);
    CHECK(ie_engine_generate(engine_handle, "a", 1, tokens, &count) == IE_ERR_INVALID_ARGUMENT);
    ie_engine_destroy(engine_handle);
    ie_engine_destroy(NULL);
    topology();
}

/* The bytes of a matrix of 3 rows and 5 columns in blocks of 2x2, of which three are stored. */
static void write_sparse(const char *path, uint32_t last_column) {
    const uint32_t numbers[17] = {0x53424549, 1, 3, 5, 2, 2, 3, 0, 0, 0, 0, 0, 2, 3, 0, 2, last_column};
    const float values[12] = {1, 2, 0, 3, 4, 9, 5, 9, 6, 7, 9, 9};
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(numbers, sizeof numbers, 1, file) == 1 && fwrite(values, sizeof values, 1, file) == 1);
    CHECK(fclose(file) == 0);
}

static void sparse(const char *path) {
    ie_block_sparse_matrix_t matrix;
    const float x[5] = {1, 10, 100, 1000, 10000};
    const float bias[3] = {0.5f, 0, 0};
    float y[3] = {-1, -1, -1};
    ie_block_sparse_init(NULL);
    ie_block_sparse_init(&matrix);
    CHECK(matrix.values == NULL && matrix.rows == 0);
    CHECK(ie_block_sparse_load(NULL, &matrix) == IE_SPARSE_ERR_ARGS);
    CHECK(ie_block_sparse_load(path, NULL) == IE_SPARSE_ERR_ARGS);
    CHECK(ie_block_sparse_load("no/such.iebs", &matrix) == IE_SPARSE_ERR_OPEN);
    write_sparse(path, 3);
    CHECK(ie_block_sparse_load(path, &matrix) == IE_SPARSE_ERR_FORMAT && matrix.values == NULL);
    write_sparse(path, 1);
    CHECK(ie_block_sparse_load(path, &matrix) == IE_SPARSE_OK);
    CHECK(matrix.rows == 3 && matrix.cols == 5 && matrix.n_block_rows == 2 && matrix.n_block_cols == 3);
    CHECK(ie_block_sparse_density(matrix.nnzb, matrix.n_block_rows, matrix.n_block_cols) == 0.5f);
    ie_gemv_block_sparse_f32(&matrix, x, y, bias);
    CHECK(y[0] == 40021.5f && y[1] == 50030.0f && y[2] == 7600.0f);
    ie_gemv_block_sparse_f32(&matrix, x, y, NULL);
    CHECK(y[0] == 40021.0f);
    /* A matrix that is wrong is refused, and leaves y as it is. */
    matrix.col_idx[2] = 3;
    y[0] = -1;
    ie_gemv_block_sparse_f32(&matrix, x, y, NULL);
    CHECK(y[0] == -1 && strstr(girih_last_error(), "col_idx") != NULL);
    matrix.col_idx[2] = 1;
    ie_gemv_block_sparse_f32(NULL, x, y, NULL);
    ie_gemv_block_sparse_f32(&matrix, NULL, y, NULL);
    ie_gemv_block_sparse_f32(&matrix, x, NULL, NULL);
    CHECK(y[0] == -1);
    ie_block_sparse_release(&matrix);
    ie_block_sparse_release(&matrix);
    ie_block_sparse_release(NULL);
    CHECK(matrix.nnzb == 0 && strcmp(ie_sparse_status_str(IE_SPARSE_OK), "ok") == 0);
    CHECK(ie_block_sparse_n_block_rows(3, 2) == 2 && ie_block_sparse_n_block_cols(5, 0) == 0);
    CHECK(remove(path) == 0);
}

static void *run_golden(void *user) {
    girih_model *model = (girih_model *)user;
    size_t run;
    for (run = 0; run < GOLDEN_RUNS; run += 1) {
        struct reply reply = {0};
        char request[512];
        write_request(request, sizeof request, &GOLDEN[run]);
        OK(girih_generate(model, request, collect, &reply));
        compare(reply.ids, reply.count, &GOLDEN[run]);
    }
    REFUSED(girih_generate(model, "{\"prompt\": \"a\", \"x\": 1}", NULL, NULL), GIRIH_STATUS_INVALID_ARGUMENT, "x");
    return NULL;
}

/* Eight threads use one handle; the last to be created closes a model of its own meanwhile. */
static void threads(void) {
    girih_model *model = opened("{" EXACT ", \"sequences\": 4}");
    pthread_t all[8];
    int index;
    for (index = 0; index < 8; index += 1) {
        CHECK(pthread_create(&all[index], NULL, run_golden, model) == 0);
    }
    OK(girih_close(opened(NULL)));
    for (index = 0; index < 8; index += 1) {
        CHECK(pthread_join(all[index], NULL) == 0);
    }
    OK(girih_close(model));
}

/* The resident memory in KiB. */
static long resident(void) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) {
            break;
        }
    }
    fclose(file);
    return kib;
}

/* Creates and destroys models and engines. The largest resident memory of the second half may exceed that of the first by
 * 1 MiB; in between it goes up and down, as threads come and go. */
static void cycles(long count) {
    long largest[2] = {0, 0};
    long index;
    CHECK(setenv("GIRIH_MODEL", "stories260k", 1) == 0);
    for (index = 0; index < count; index += 1) {
        ie_engine_params_t params = {1, NULL, NULL, NULL, NULL};
        ie_engine_t *engine_handle = NULL;
        girih_model *model = opened("{\"threads\": 1}");
        CHECK(ie_engine_create(&params, &engine_handle) == IE_OK);
        ie_engine_destroy(engine_handle);
        OK(girih_close(model));
        if (resident() > largest[index * 2 / count]) {
            largest[index * 2 / count] = resident();
        }
    }
    printf("%ld create and destroy: at most %ld KiB, then %ld KiB\n", count, largest[0], largest[1]);
    CHECK(largest[1] - largest[0] <= 1024);
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    const char *argument = argc > 2 ? argv[2] : "";
    OK(girih_check_abi(GIRIH_ABI_VERSION));
    CHECK(girih_abi_version() == GIRIH_ABI_VERSION && girih_version()[0] != '\0');
    if (strcmp(part, "replies") == 0) {
        replies();
    } else if (strcmp(part, "refusals") == 0) {
        refusals();
    } else if (strcmp(part, "embeddings") == 0) {
        embeddings(argument);
    } else if (strcmp(part, "engine") == 0) {
        engine();
    } else if (strcmp(part, "sparse") == 0) {
        sparse(argument);
    } else if (strcmp(part, "threads") == 0) {
        threads();
    } else if (strcmp(part, "cycles") == 0) {
        cycles(strtol(argument, NULL, 10));
    } else {
        fprintf(stderr, "no such part: %s\n", part);
        return 2;
    }
    return 0;
}
