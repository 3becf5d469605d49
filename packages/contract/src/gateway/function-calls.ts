/**
 * Calls of functions at a gateway: `POST /fns/{name}/invoke` with an API key, `POST /fn/{project}/{name}` at a public endpoint. The
 * body goes to the handler, and its answer comes back, as they are. The response to a call with a key is 200 whenever the handler
 * has answered; any other status is the gateway's.
 */

/** Of responses. */
export const INVOCATION_ID_HEADER = 'x-rlp-invocation-id';
/** The handler's own status. */
export const FUNCTION_STATUS_HEADER = 'x-rlp-fn-status';
/** `1` when the call has waited for an instance to start, otherwise `0`. */
export const FUNCTION_COLD_HEADER = 'x-rlp-cold';
/** Number of the version that has answered. */
export const FUNCTION_VERSION_HEADER = 'x-rlp-fn-version';
/**
 * How long the handler took until its answer began, in milliseconds; with an error how long it had the call. Absent when the handler
 * did not get it.
 */
export const FUNCTION_DURATION_HEADER = 'x-rlp-duration-ms';
/** `1` with an error: the connection to the handler ended before its answer was complete. */
export const FUNCTION_BROKEN_HEADER = 'x-rlp-fn-broken';

/**
 * Of requests of the control plane, which also says the invocation's id and records it itself: with `wait` the time in the queue
 * counts only while there is no instance.
 */
export const FUNCTION_QUEUE_HEADER = 'x-rlp-queue';
/** The number of the attempt, of the same requests: the gateway reports with it what runs for long. */
export const INVOCATION_ATTEMPT_HEADER = 'x-rlp-invocation-attempt';

/** Headers of this prefix are the service's: no client and no handler sets them. */
export const SERVICE_HEADER_PREFIX = 'x-rlp-';
