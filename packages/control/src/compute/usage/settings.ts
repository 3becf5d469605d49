/** Settings of the records of use. */
export interface UsageSettings {
  /** Whether use is recorded and shown. */
  mode: 'on' | 'off';
  /** Retention of minutes, in days. */
  minuteDays: number;
  /** Retention of hours, in days. */
  hourDays: number;
}

export const USAGE_SETTINGS: UsageSettings = { mode: 'on', minuteDays: 1, hourDays: 400 };
