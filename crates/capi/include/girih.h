/* girih for C: runs open-weight language models. The page docs/c.md has the JSON of options, requests and events.
 *
 * Any thread may call any function, also with the same handle. Texts are UTF-8 with a zero at the end. A text that a
 * function stores is freed with girih_string_free; one that a function returns is not. A function whose status is not
 * GIRIH_STATUS_OK keeps a sentence for girih_last_error.
 *
 * cbindgen writes this file from crates/capi/src/abi; see crates/capi/check.sh. */

#ifndef GIRIH_H
#define GIRIH_H

#include <stddef.h>
#include <stdint.h>

/*
 The call did what it says.
 */
#define IE_OK 0

/*
 An argument is wrong, or the engine was destroyed.
 */
#define IE_ERR_INVALID_ARGUMENT 1

/*
 The model cannot be found or read.
 */
#define IE_ERR_IO 2

/*
 A request or a setting is not supported.
 */
#define IE_ERR_UNSUPPORTED 3

/*
 Memory does not suffice, or girih failed.
 */
#define IE_ERR_INTERNAL 255

/*
 The version of this interface. It grows when a function is added; a function that is there keeps its form.
 */
#define GIRIH_ABI_VERSION 1

/*
 The call did what it says.
 */
#define IE_SPARSE_OK 0

/*
 An argument is wrong.
 */
#define IE_SPARSE_ERR_ARGS -1

/*
 The file cannot be opened.
 */
#define IE_SPARSE_ERR_OPEN -2

/*
 The file cannot be read, or has another length than its header says.
 */
#define IE_SPARSE_ERR_READ -3

/*
 The file has another beginning or version.
 */
#define IE_SPARSE_ERR_MAGIC -4

/*
 The numbers of the matrix contradict each other.
 */
#define IE_SPARSE_ERR_FORMAT -5

/*
 Memory does not suffice.
 */
#define IE_SPARSE_ERR_NOMEM -6

/*
 How a call ended. Later versions may add codes; the numbers of these stay.
 */
typedef enum girih_status {
    /*
     The call did what it says.
     */
    GIRIH_STATUS_OK = 0,
    /*
     A parameter or a request is wrong, or not supported.
     */
    GIRIH_STATUS_REFUSED = 1,
    /*
     A prompt, or a prompt with its reply, exceeds the context.
     */
    GIRIH_STATUS_TOO_LONG = 2,
    /*
     The queue of requests is full; the same request may succeed later.
     */
    GIRIH_STATUS_QUEUE_FULL = 3,
    /*
     The request waited longer than is allowed; the same request may succeed later.
     */
    GIRIH_STATUS_WAIT_TOO_LONG = 4,
    /*
     The caller cancelled the work.
     */
    GIRIH_STATUS_CANCELLED = 5,
    /*
     There is no model, file, backend or device of this name.
     */
    GIRIH_STATUS_NOT_FOUND = 6,
    /*
     Memory does not suffice.
     */
    GIRIH_STATUS_OUT_OF_MEMORY = 7,
    /*
     The device, or the thread that drives it, failed.
     */
    GIRIH_STATUS_DEVICE_FAILED = 8,
    /*
     The model produced NaN.
     */
    GIRIH_STATUS_NOT_A_NUMBER = 9,
    /*
     The model produced a key or value that the type of the KV cache cannot hold.
     */
    GIRIH_STATUS_OUT_OF_RANGE = 10,
    /*
     Any other error, such as a malformed file.
     */
    GIRIH_STATUS_OTHER = 11,
    /*
     An argument is null, not UTF-8, not JSON of the known form, or has a wrong size.
     */
    GIRIH_STATUS_INVALID_ARGUMENT = 12,
    /*
     The handle was closed, or is none of this kind.
     */
    GIRIH_STATUS_INVALID_HANDLE = 13,
    /*
     The buffer is too small; the needed number of elements was stored.
     */
    GIRIH_STATUS_BUFFER_TOO_SMALL = 14,
    /*
     Nothing has arrived within the given time.
     */
    GIRIH_STATUS_TIMED_OUT = 15,
    /*
     A fault of girih, which was caught; the sentence has its message.
     */
    GIRIH_STATUS_PANICKED = 16,
} girih_status;

/*
 An engine. A handle is a number: one that was destroyed is refused, never followed.
 */
typedef struct ie_engine_t ie_engine_t;

/*
 An open model. A handle is a number: one that was closed is refused, never followed.
 */
typedef struct girih_model girih_model;

/*
 A reply that is polled. A handle is a number: one that was closed is refused, never followed.
 */
typedef struct girih_reply girih_reply;

/*
 The CPUs of this machine. A handle is a number: one that was destroyed is refused, never followed.
 */
typedef struct ie_topology_t ie_topology_t;

/*
 How a call ended: one of the codes IE_….
 */
typedef int ie_status_t;

/*
 The parameters of an engine. Null and empty texts are the defaults; unknown values are refused.
 */
typedef struct ie_engine_params_t {
    /*
     The number of threads; 0 is one for each core.
     */
    int threads;
    /*
     "auto", "compact", "scatter" or "none".
     */
    const char *affinity;
    /*
     "none", "woh", "wxh" or "all"; no effect, as weights are packed for the kernels.
     */
    const char *pretranspose;
    /*
     "auto" or "on"; no effect, as the distance is measured when the model is loaded.
     */
    const char *prefetch;
    /*
     Of activations: "fp32" or "bf16". The precision of weights is the model's own.
     */
    const char *precision;
} ie_engine_params_t;

/*
 The figures of an engine's last reply.
 */
typedef struct ie_metrics_t {
    /*
     The tokens of the reply by the time of the call.
     */
    double tps_true;
    /*
     The median of the times between two tokens, in milliseconds.
     */
    double latency_p50_ms;
    /*
     Their 95th percentile.
     */
    double latency_p95_ms;
    /*
     The peak of the process's resident memory in MiB.
     */
    size_t rss_peak_mb;
    /*
     The tokens of the prompt whose state was kept of an earlier one.
     */
    uint64_t kv_hits;
    /*
     The other tokens of the prompt.
     */
    uint64_t kv_misses;
} ie_metrics_t;

/*
 Receives the events of a reply: one JSON object each, which lies there during the call. A result other than 0 cancels
 the request. It must return: no exception and no longjmp may leave it.
 */
typedef int (*girih_event_callback)(const char *event, void *user);

/*
 How a call ended: one of the codes IE_SPARSE_….
 */
typedef int ie_sparse_status_t;

/*
 A block-sparse matrix. The arrays are memory of malloc, or null.
 */
typedef struct ie_block_sparse_matrix_t {
    /*
     Rows of the matrix.
     */
    uint32_t rows;
    /*
     Columns of the matrix.
     */
    uint32_t cols;
    /*
     Rows of a block.
     */
    uint32_t block_rows;
    /*
     Columns of a block.
     */
    uint32_t block_cols;
    /*
     The number of rows of blocks: rows by block_rows, rounded up.
     */
    uint32_t n_block_rows;
    /*
     The number of columns of blocks: cols by block_cols, rounded up.
     */
    uint32_t n_block_cols;
    /*
     The number of stored blocks.
     */
    uint32_t nnzb;
    /*
     Where the blocks of each row of blocks begin, and the end: n_block_rows + 1 entries.
     */
    uint32_t *row_ptr;
    /*
     The column of each block among those of blocks, ascending in a row: nnzb entries.
     */
    uint32_t *col_idx;
    /*
     The values of each block, row by row: nnzb * block_rows * block_cols entries.
     */
    float *values;
} ie_block_sparse_matrix_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Loads the model of the variable GIRIH_MODEL; `p` may be null. Stores the engine's handle, or null. girih_last_error has
 the sentence of a fault.
 */
ie_status_t ie_engine_create(const struct ie_engine_params_t *p, struct ie_engine_t **out);

/*
 Continues `prompt` by at most `max_new` tokens, the most likely one each time, until the model ends the text. Stores
 the tokens in `out_tokens`, which has room for `max_new`, and their number.
 */
ie_status_t ie_engine_generate(struct ie_engine_t *h,
                               const char *prompt,
                               size_t max_new,
                               uint32_t *out_tokens,
                               uint32_t *out_count);

/*
 Stores the figures of the last reply; zeros before the first, but for the memory.
 */
ie_status_t ie_engine_metrics(const struct ie_engine_t *h, struct ie_metrics_t *out);

/*
 Destroys an engine. Null is allowed, and a handle that was destroyed is ignored.
 */
void ie_engine_destroy(struct ie_engine_t *h);

/*
 Returns the version of the interface that the library has.
 */
uint32_t girih_abi_version(void);

/*
 Checks that the library has what a program was compiled for: pass GIRIH_ABI_VERSION.
 */
enum girih_status girih_check_abi(uint32_t version);

/*
 Returns the library's version, such as "0.1.0"; it must not be freed.
 */
const char *girih_version(void);

/*
 Returns the sentence of the last fault of a call on this thread, empty before the first. It must not be freed, and
 lies there until the next fault on this thread.
 */
const char *girih_last_error(void);

/*
 Returns the name of a code, such as "not_found", or null if there is none; it must not be freed.
 */
const char *girih_status_name(int status);

/*
 Frees a text that a function of this library stored. Null is allowed; a text that was freed is refused.
 */
enum girih_status girih_string_free(char *text);

/*
 Stores what the library has, as JSON: its version, its backends with their options. Free the text.
 */
enum girih_status girih_capabilities(char **json);

/*
 Opens a model: its files are read, its weights are not yet. `options` is a JSON object, or null for the defaults; its
 keys are in the documentation. Stores the model's handle, or null.
 */
enum girih_status girih_open(const char *model, const char *options, struct girih_model **out);

/*
 Closes a model. Calls that use it on other threads end as usual, and keep it until then; so do its open replies.
 */
enum girih_status girih_close(struct girih_model *model);

/*
 Loads a model, unless it is loaded, and returns when it can run. Other functions do so first where they need it.
 */
enum girih_status girih_start(struct girih_model *model);

/*
 Stores what a model is, as JSON. Free the text.
 */
enum girih_status girih_info(struct girih_model *model, char **json);

/*
 Stores what running a model takes with its options, as JSON: context, arithmetic, memory. Nothing is loaded. Free the
 text.
 */
enum girih_status girih_plan(struct girih_model *model, char **json);

/*
 Stores the token ids of a text and their number. With `special` other than 0, special tokens that the text spells are
 parsed. If `capacity` is too small, only the number is stored, and the status is GIRIH_STATUS_BUFFER_TOO_SMALL.
 */
enum girih_status girih_tokenize(struct girih_model *model,
                                 const char *words,
                                 int special,
                                 uint32_t *ids,
                                 size_t capacity,
                                 size_t *count);

/*
 Stores the text of `count` token ids, without special tokens. Free the text.
 */
enum girih_status girih_detokenize(struct girih_model *model, const uint32_t *ids, size_t count, char **out);

/*
 Runs a request, a JSON object, and passes the events of its reply to `callback` on this thread; returns after the last
 one. `callback` may be null.
 */
enum girih_status girih_generate(struct girih_model *model,
                                 const char *request,
                                 girih_event_callback callback,
                                 void *user);

/*
 Submits a request, a JSON object, and stores the handle of its reply, or null. Its events wait until they are polled.
 */
enum girih_status girih_submit(struct girih_model *model, const char *request, struct girih_reply **out);

/*
 Stores the next event of a reply, one JSON object, or null after the last one. Waits for at most `milliseconds`, or
 without end if they are negative; the status is GIRIH_STATUS_TIMED_OUT if nothing has arrived. Free the text.
 */
enum girih_status girih_next(struct girih_reply *reply, int64_t milliseconds, char **event);

/*
 Cancels a reply from any thread: its last event says so. It stays open.
 */
enum girih_status girih_cancel(struct girih_reply *reply);

/*
 Closes a reply, and cancels it if it has not ended.
 */
enum girih_status girih_reply_close(struct girih_reply *reply);

/*
 Stores one vector for each text of a request, one after another, and the number of all values. The request is
 {"input": [...]} with a text or a list of token ids for each vector. If `capacity` is too small, only the number is
 stored, and the status is GIRIH_STATUS_BUFFER_TOO_SMALL.
 */
enum girih_status girih_embed(struct girih_model *model,
                              const char *request,
                              float *values,
                              size_t capacity,
                              size_t *count);

/*
 Returns what a code means; it must not be freed.
 */
const char *ie_sparse_status_str(ie_sparse_status_t status);

/*
 Makes a matrix empty, without freeing what it had. Null is allowed.
 */
void ie_block_sparse_init(struct ie_block_sparse_matrix_t *m);

/*
 Frees the arrays of a matrix and makes it empty. Null is allowed.
 */
void ie_block_sparse_release(struct ie_block_sparse_matrix_t *m);

/*
 Returns the number of rows of blocks, or 0 if block_rows is 0.
 */
uint32_t ie_block_sparse_n_block_rows(uint32_t rows, uint32_t block_rows);

/*
 Returns the number of columns of blocks, or 0 if block_cols is 0.
 */
uint32_t ie_block_sparse_n_block_cols(uint32_t cols, uint32_t block_cols);

/*
 Returns the share of the blocks that is stored, or 0 if a number is 0.
 */
float ie_block_sparse_density(uint32_t nnzb, uint32_t n_block_rows, uint32_t n_block_cols);

/*
 Reads a matrix from a file that begins with IEBS. Stores it, or an empty one.
 */
ie_sparse_status_t ie_block_sparse_load(const char *path, struct ie_block_sparse_matrix_t *out);

/*
 Multiplies: y = W x, plus bias if it is not null. x has `cols` values, y and bias have `rows`. Each sum has the order of
 the columns. A matrix that is wrong, or another fault, leaves y as it is, and girih_last_error has a sentence.
 */
void ie_gemv_block_sparse_f32(const struct ie_block_sparse_matrix_t *m,
                              const float *x,
                              float *y,
                              const float *bias);

/*
 Reads the CPUs of this machine and stores a handle, or null. Returns 0, or a negative number.
 */
int ie_topology_init(struct ie_topology_t **topo);

/*
 Destroys a topology. Null is allowed, and a handle that was destroyed is ignored.
 */
void ie_topology_destroy(struct ie_topology_t *topo);

/*
 Returns the number of CPUs that are online, or 0 for a handle that is none.
 */
int ie_topology_cpus(const struct ie_topology_t *topo);

/*
 Returns the number of sockets, or 0 for a handle that is none.
 */
int ie_topology_sockets(const struct ie_topology_t *topo);

/*
 Returns the number of NUMA nodes with CPUs, or 0 for a handle that is none.
 */
int ie_topology_nodes(const struct ie_topology_t *topo);

/*
 Returns the socket of a CPU, from 0 in the order of the system's numbers, or -1 if there is no such CPU.
 */
int ie_topology_cpu_to_socket(const struct ie_topology_t *topo, int cpu);

/*
 Returns the NUMA node of a CPU, or -1 if there is no such CPU.
 */
int ie_topology_cpu_to_node(const struct ie_topology_t *topo, int cpu);

/*
 Returns the lowest CPU of a socket, or -1 if there is no such socket.
 */
int ie_topology_first_cpu_on_socket(const struct ie_topology_t *topo, int socket);

/*
 Pins the calling thread to the CPUs of a socket; threads that it starts later inherit them. Returns 0, or a negative
 number if there is no such handle or socket, or the system refuses.
 */
int ie_topology_bind_thread_to_socket(const struct ie_topology_t *topo, int socket);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GIRIH_H */
