/** What a look at one part of the machine says. */
export interface Check {
  /** Stable, for programs that read `--json`. */
  id: string;
  title: string;
  /** `ok`, `warn` (it works, at a cost), `missing` (sandboxes do not run without it), or `damaged` (data is not what it was). */
  status: 'ok' | 'warn' | 'missing' | 'damaged';
  detail: string;
  /** Debian packages that would bring it. */
  packages?: string[];
}
