export type Facts = Record<string, string | number>;

/** Where lines go is decided elsewhere: netd has no log of its own, the runner writes what netd tells it. */
export interface Log {
  error(facts: Facts, message: string): void;
  warn(facts: Facts, message: string): void;
  info(facts: Facts, message: string): void;
}
