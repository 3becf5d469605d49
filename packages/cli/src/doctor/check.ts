/** What a look at one part of the machine says. */
export interface Check {
  /** Stable, for programs that read `--json`. */
  id: string;
  title: string;
  /** `ok`, `warn` (it works, at a cost), or `missing` (sandboxes do not run without it). */
  status: 'ok' | 'warn' | 'missing';
  detail: string;
  /** Debian packages that would bring it. */
  packages?: string[];
}
