"""What people see of records: tables, pictures, lines of advice."""
