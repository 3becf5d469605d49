/** The request id, which correlates the log lines of gateway, control plane and host. */

export const REQUEST_ID_HEADER = 'x-request-id';

/** @returns a function that returns the client's id if it is well-formed, else a generated one */
export function requestIdSource(): (given: string | string[] | undefined) => string {
  const start = Date.now().toString(36);
  let counter = 0;
  return (given) => {
    if (typeof given === 'string' && /^[A-Za-z0-9._-]{1,100}$/.test(given)) return given;
    counter = (counter + 1) % Number.MAX_SAFE_INTEGER;
    return `${start}-${counter.toString(36)}`;
  };
}
