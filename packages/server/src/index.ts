export { type Config, ConfigError, loadConfig } from './config/config.ts';
export { type BootstrapFile } from './bootstrap.ts';
export { loggerOptions } from './log/logger-options.ts';
