/** Exit codes of `rlp`, as docs/cli.md lists them. `run` and `exec` pass on the code of the command instead. */
export const EXIT = {
  ok: 0,
  /** The service refused the request, or it failed. */
  failed: 1,
  /** The command line is invalid. */
  usage: 2,
  /** The service cannot be reached, or the credentials are refused. */
  unavailable: 3,
  /** Whatever was named does not exist. */
  notFound: 4,
  /** `run` and `exec`: the time given to the command was over. */
  timeout: 124,
  /** `run` and `exec`: rlp itself failed, so no code of the command exists. */
  noCommand: 125,
  interrupted: 130,
} as const;
