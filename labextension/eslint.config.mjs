import tseslint from 'typescript-eslint';

export default tseslint.config(...tseslint.configs.recommended, {
  rules: {
    curly: 'error',
    eqeqeq: 'error',
    '@typescript-eslint/consistent-type-imports': 'error',
    // Interfaces and the tokens that stand for them have one name, as in JupyterLab.
    '@typescript-eslint/no-redeclare': 'off'
  }
});
